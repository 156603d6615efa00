"""The loop: data on the device, updates one after the other, a log, checkpoints, and exact resumption.

A run is a function of its configuration: batches and augmentations are keyed by (seed, step), so going on
from a checkpoint needs the weights, the optimiser's state and the step, and ends in the same bytes.
"""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from intnacl.data.batches import batch_indices, rank_rows, steps_per_epoch
from intnacl.errors import InputError
from intnacl.training.checkpoint import Checkpoint, Writer, newest, saved
from intnacl.training.journal import Journal
from intnacl.training.objectives import Objective
from intnacl.training.optimizers import build_optimizer, rate_at, set_rate
from intnacl.training.ranks import Ranks, any_rank, largest, mean_over_ranks, wrap_ddp
from intnacl.training.run_state import RunState
from intnacl.training.settings import TrainConfig
from intnacl.training.step import Stepper
from intnacl.training.stop import Stop

CHECK = 50  # steps between looks at the losses, which wait for the GPU
PATIENCE = 10.0  # seconds after which a process on its own looks all the same, as slow steps need
Monitor = Callable[[nn.Module], dict[str, float]]


def _resident(images: Tensor, device: torch.device) -> Tensor:
    """All images on the device, where they stay."""
    try:
        return images.to(device)
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"out of memory: the {len(images):,} images take {images.nbytes / 2**30:.1f} GiB on {device}, "
            "more than it has free. Take fewer or smaller ones (--set size for those that are resized)."
        ) from error


class DivergedError(InputError):
    """The loss stopped being a number."""


class Trainer:
    """One run of an objective on a data set that lives on the device.

    `checkpoints` is the folder that they are written to, `checksum` that of the data set, which they record.
    """

    def __init__(
        self,
        objective: Objective,
        images: Tensor,
        labels: Tensor | None,
        config: TrainConfig,
        *,
        checkpoints: Path,
        seed: int,
        here: Ranks,
        checksum: str | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        config = config.on(here.device)
        self.config, self.seed, self.here, self.monitor = config, seed, here, monitor
        self.n, self.checksum = len(images), checksum
        self.writer = Writer(checkpoints, config.keep)
        self.batches = steps_per_epoch(self.n, config.batch_size)
        self.updates = self.batches // config.accumulate
        if self.updates == 0:
            raise InputError(
                f"train.accumulate={config.accumulate} is more than the {self.batches} batches that an epoch "
                "has: lower it, or --batch-size."
            )
        self.steps = config.epochs * self.updates
        rows = rank_rows(here.rank, here.world, config.batch_size, halo=objective.halo, device=here.device)
        self.objective = objective.to(here.device).train()
        if config.precision == "fp64":
            objective.double()
        objective.to(memory_format=torch.channels_last)
        self.optimizer = build_optimizer(objective.model, config, here.device)
        if here.world > 1:
            objective.distribute(lambda module: wrap_ddp(module, here.device))
        self.rows, self.state, self._compiled = rows, RunState(), False
        labels = labels.to(here.device) if labels is not None else None
        self.stepper = Stepper(
            objective, self.optimizer, _resident(images, here.device), labels, rows,
            batches=config.accumulate, precision=config.precision, clip=config.clip,
        )  # fmt: skip

    def resume(self) -> str | None:
        """Go on from the newest checkpoint, if there is one.

        Returns the checksum of the data set that it was trained on, or None if that is unknown: the caller
        decides whether the run may go on with the one at hand.
        """
        found = newest(self.writer.folder, self.here.device)
        step = found.step if found else 0
        if largest(step, self.here) != -largest(-step, self.here):
            raise InputError(
                f"rank {self.here.rank} finds the checkpoint of step {step} in {self.writer.folder}, others "
                "another one: --out must lie on a disk that all machines share."
            )
        if found is None:
            return None
        self.objective.model.load_state_dict(found.model)
        # The groups are this machine's: a run may go on with another device's options.
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": found.optimizer["state"], "param_groups": groups})
        self.stepper.scaler.load_state_dict(found.optimizer["scaler"])
        self.state = RunState.at(found.step, found.info)
        checksum: str | None = found.info.get("data")
        return checksum

    def run(self, stop: Stop, journal: Journal) -> str | None:
        """Train to the end (None) or until told to stop (the reason), from where `resume` left off.

        The caller's random numbers and settings of torch stay as they were.
        """
        device, search = self.here.device, torch.backends.cudnn.benchmark
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                return self._run(stop, journal)
        finally:
            torch.backends.cudnn.benchmark = search

    def _run(self, stop: Stop, journal: Journal) -> str | None:
        journal.rewind(self.state.step)
        if self.state.step:
            journal.say(f"going on from step {self.state.step} of {self.steps}")
        if self.state.step < self.steps:
            self._compile(journal)
        with self.writer:
            return self._loop(stop, journal)

    # ---- the loop ----------------------------------------------------------------------------------------

    def _loop(self, stop: Stop, journal: Journal) -> str | None:
        saved_at = time.monotonic()
        while self.state.step < self.steps:
            self._chunk(stop, journal)
            self.writer.check()
            minutes = (time.monotonic() - saved_at) / 60
            ending = stop.shared(lambda number: largest(number, self.here))
            if ending or self.state.step == self.steps or self._save_is_due(minutes):
                with self.state.spending("pausing"):
                    self._save()
                saved_at = time.monotonic()
            if ending and self.state.step < self.steps:
                return stop.reason
        return None

    def _compile(self, journal: Journal) -> None:
        """Make the update as fast as the machine allows, which a user should not take for a standstill."""
        if self.config.compile:
            journal.say("compiling the update, which can take a minute or two; kernels are cached")
        with self.state.spending("compiling"):
            way = self.stepper.prepare(
                compiled=bool(self.config.compile),
                graph=bool(self.config.cuda_graph) and self.here.world == 1,
                say=journal.say,
                alone=self.here.world == 1,
            )
        self._compiled = way.compiled
        journal.say(f"{self.steps - self.state.step} updates to go, {self.config.precision}, {way}")

    def _chunk(self, stop: Stop, journal: Journal) -> None:
        """Updates up to the next look at the losses: some steps, never beyond the epoch."""
        start, begun = self.state.step, time.monotonic()
        end = min(start + CHECK, (start // self.updates + 1) * self.updates)
        if self.config.save_steps:
            end = min(end, (start // self.config.save_steps + 1) * self.config.save_steps)
        history: list[Tensor] = []
        while self.state.step < end:
            history.append(self._one_step().clone())
            if self.here.world == 1 and (stop.due() or time.monotonic() - begun > PATIENCE):
                break
        terms_ST = mean_over_ranks(torch.stack(history), self.here).cpu()
        self._check_finite(terms_ST, start)
        elapsed = time.monotonic() - begun
        self.state.spent["seconds"] += elapsed
        self.state.add(self._named(terms_ST.double().sum(0)))
        speed = len(history) * self.config.batch_size * self.config.accumulate / elapsed
        journal.progress(self.state.step / self.updates, self._named(terms_ST.mean(0)), speed)
        journal.time_left(elapsed / len(history) * (self.steps - self.state.step))
        if self.state.step % self.updates == 0:
            self._end_epoch(journal, speed)

    def _named(self, terms_T: Tensor) -> dict[str, float]:
        return dict(zip(self.stepper.names, terms_T.tolist(), strict=True))

    def _one_step(self) -> Tensor:
        epoch, update = divmod(self.state.step, self.updates)
        first = epoch * self.batches + update * self.config.accumulate  # batch of the run
        if self.config.warmup_epochs or self.config.schedule != "constant":
            set_rate(self.optimizer, self._rate_at(self.state.step))
        self._seed_layers()
        terms_T = self.stepper(self._indices(first), first)
        self.state.step += 1
        return terms_T

    def _indices(self, first: int) -> Tensor:
        """This rank's images in the batches of an update: (k, R)."""
        size, device = self.config.batch_size, self.here.device
        batches = range(first, first + self.config.accumulate)
        return torch.stack(
            [batch_indices(self.seed, batch, self.n, size, device=device)[self.rows] for batch in batches]
        )

    def _rate_at(self, step: int) -> float:
        warmup = round(self.config.warmup_epochs * self.updates)
        return rate_at(self.config, step, self.steps, warmup)

    def _seed_layers(self) -> None:
        """Layers that draw for themselves, as dropout does, draw a function of (seed, step, rank)."""
        key = f"{self.seed} {self.state.step} {self.here.rank}".encode()
        torch.manual_seed(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little"))

    def _check_finite(self, terms_ST: Tensor, start: int) -> None:
        bad_S = ~terms_ST.isfinite().all(1)
        if bad_S.any():
            place = int(bad_S.int().argmax())
            values = str(self._named(terms_ST[place]))
            self._diverged(f"the loss is not finite at step {start + place}", start + place, values)

    def _check_weights(self) -> None:
        """Weights and statistics that are no longer numbers must not become a checkpoint."""
        bad = [
            name for name, value in self.objective.model.state_dict().items() if not value.isfinite().all()
        ]
        if bad:
            last = self.state.step - 1
            self._diverged(f"weights are not finite after step {last}", last, bad[0])

    def _diverged(self, what: str, step: int, details: str) -> NoReturn:
        self.writer.wait()
        folder = self.writer.folder
        kept = f"The last good checkpoint in {folder} stays." if saved(folder) else "Nothing was saved yet."
        raise DivergedError(
            f"{what} (epoch {step // self.updates + 1}): {details}. {kept} "
            "Lower --lr, or --set train.clip=1 or train.precision=fp32."
        )

    def _end_epoch(self, journal: Journal, speed: float) -> None:
        epoch = self.state.step // self.updates
        record: dict[str, Any] = {"epoch": epoch, "step": self.state.step}
        record |= self.state.end_epoch(self.updates)
        record["lr"] = self._rate_at(self.state.step - 1)
        every = self.config.monitor_epochs
        if self.monitor and every and (epoch % every == 0 or epoch == self.config.epochs) and self.here.main:
            with self.state.spending("pausing"):
                record |= self.monitor(self.objective.encoder)
            self.objective.train()
        # The best step is that of the highest kNN accuracy where it is watched, of the lowest loss otherwise.
        self.state.judge(record.get("knn") if self.monitor and every else -record["loss"])
        record |= {"images_per_s": round(speed, 1), "compiled": self._compiled}
        journal.epoch(record | {what: round(seconds, 2) for what, seconds in self.state.spent.items()})

    # ---- checkpoints -------------------------------------------------------------------------------------

    def _save_is_due(self, minutes: float) -> bool:
        every = self.config.save_steps
        by_step = every is not None and self.state.step % every == 0
        best_now = self.monitor is not None and self.state.is_best
        return any_rank(by_step or best_now or minutes >= self.config.save_minutes, self.here)

    def _save(self) -> None:
        self._check_weights()
        if self.here.main:
            info = self.state.info() | {"data": self.checksum}
            optimizer = {
                "state": self.optimizer.state_dict()["state"],
                "scaler": self.stepper.scaler.state_dict(),
            }
            model = self.objective.model.state_dict()
            whole = Checkpoint(step=self.state.step, model=model, optimizer=optimizer, info=info)
            self.writer.save(whole, self.state.best[1] if self.state.best else None)
