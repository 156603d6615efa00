"""The training loop: updates one after the other, a log, checkpoints, and exact resumption.

A run is a function of its configuration: batches and augmentations are keyed by (seed, step), so resuming
from a checkpoint needs only the weights, the optimiser's state and the step, and ends in the same bytes.

Shapes: S updates between two looks at the losses, k batches per update, R rows of a rank's batch, T terms.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from intnacl.data.batches import batch_indices, steps_per_epoch
from intnacl.data.images import decoder_version
from intnacl.data.streamed import Images, StreamedImages
from intnacl.errors import InputError
from intnacl.training.checkpoint import Checkpoint, Writer, load, newest, saved, step_folder
from intnacl.training.journal import Journal, Record
from intnacl.training.objectives import Objective
from intnacl.training.optimizers import rate_at, set_rate
from intnacl.training.ranks import Ranks, any_rank, largest, mean_over_ranks, union
from intnacl.training.run_state import RunInfo, RunState
from intnacl.training.settings import TrainConfig
from intnacl.training.step import TrainStep
from intnacl.training.stop import Stop
from intnacl.training.workers import Planned

LOOK_STEPS = 50  # between looks at the losses, which wait for the GPU
LOOK_SECONDS = 5.0  # after this time a single process looks anyway, in case steps are slow
LONG_EPOCH = 600.0  # seconds per epoch on a CPU from which faster options are suggested
CPU = torch.device("cpu")
Monitor = Callable[[nn.Module], dict[str, float]]


class DivergedError(InputError):
    """The loss stopped being a number."""


class Trainer:
    """One run of an objective on a data set.

    `checkpoints` is the folder for checkpoints, `checksum` the data set's, which checkpoints record. Images
    are on the device or, if `stream`, come from the disk or from this machine's memory; the run ends if more
    than the share `max_broken` of them is damaged.
    """

    def __init__(
        self,
        objective: Objective,
        images: Images,
        labels: Tensor | None,
        config: TrainConfig,
        *,
        checkpoints: Path,
        seed: int,
        here: Ranks,
        checksum: str | None = None,
        monitor: Monitor | None = None,
        stream: bool = False,
        max_broken: float = 0.01,
    ) -> None:
        self.n, self.batches = len(images), steps_per_epoch(len(images), config.batch_size)
        self.updates = self.batches // config.accumulate
        if self.updates == 0:
            raise InputError(
                f"train.accumulate={config.accumulate} is more than the {self.batches} batches that an epoch "
                "has: lower it, or --batch-size."
            )
        self.steps = config.epochs * self.updates
        self.objective, self.seed, self.here = objective, seed, here
        self.checksum, self.monitor = checksum, monitor
        self.train_step = TrainStep(objective, images, labels, config, here, stream=stream)
        self.max_broken = max_broken
        self.config = self.train_step.config
        self.writer = Writer(checkpoints, config.keep)
        self.state = RunState()

    @property
    def decoder(self) -> str | None:
        """The decoder of streamed images, with its version; None where none are streamed."""
        images = self.train_step.source.images
        return decoder_version() if isinstance(images, StreamedImages) else None

    def resume(self) -> RunInfo | None:
        """Load the newest checkpoint, if there is one.

        Returns its record of the run; the caller decides whether these images and ranks may resume it.
        """
        found = newest(self.writer.folder, self.here.device)
        step = found.step if found else 0
        if largest(step, self.here) != -largest(-step, self.here):
            raise InputError(
                f"rank {self.here.rank} finds the checkpoint of step {step} in {self.writer.folder}, others "
                "find another one: --out must be on a disk that all machines share."
            )
        if found is None:
            return None
        self.objective.model.load_state_dict(found.model)
        self.train_step.load_state(found.optimizer)
        self.state = RunState.at(found.step, found.info)
        self.train_step.source.broken.update(self.state.broken)
        return found.info

    def run(self, stop: Stop, journal: Journal) -> str | None:
        """Train from where `resume` left off; return None at the end, or the reason for stopping earlier.

        The caller's random state and torch settings stay as they were.
        """
        config, state, step = self.config, self.state, self.train_step
        with _callers_settings_kept(self.here.device), self.writer, ExitStack() as stack:
            journal.rewind(state.step)
            if state.step:
                journal.say(f"going on from step {state.step} of {self.steps}")
            compiled = advised = False
            if state.step < self.steps:
                if config.compile:  # which a user should not mistake for a hang
                    journal.say("compiling the update, which can take a minute or two; kernels are cached")
                with state.spending("compiling"):
                    mode = step.prepare(journal.say)
                compiled = mode.fully_compiled
                journal.say(f"{self.steps - state.step} updates to go, {config.precision}, {mode}")
            saved_at = time.monotonic()
            stack.enter_context(step.source.opened(self._plan()))
            while state.step < self.steps:
                begun = time.monotonic()
                terms_ST = self._update_until_look(stop)
                elapsed = time.monotonic() - begun
                state.spent["seconds"] += elapsed
                self._share_broken()
                state.add(step.named(terms_ST.double().sum(0)))
                speed = len(terms_ST) * config.batch_size * config.accumulate / elapsed
                journal.progress(state.step / self.updates, step.named(terms_ST.mean(0)), speed)
                per_update = elapsed / len(terms_ST)
                journal.time_left(per_update * (self.steps - state.step))
                per_epoch = per_update * self.updates
                if self.here.device.type == "cpu" and per_epoch > LONG_EPOCH and not advised:
                    advised = True
                    journal.say(
                        f"an epoch takes about {per_epoch / 60:.0f} minutes on this CPU. Faster: a GPU, "
                        "--set encoder.name=small, or smaller images (--set size)."
                    )
                if state.step % self.updates == 0:
                    machine: Record = {
                        "images_per_s": round(speed, 1), "compiled": compiled, "ranks": self.here.world,
                    }  # fmt: skip
                    record = self._end_epoch() | machine
                    journal.epoch(record | {name: round(s, 2) for name, s in state.spent.items()})
                self.writer.check()
                due = (
                    (time.monotonic() - saved_at) / 60 >= config.save_minutes
                    or (config.save_steps is not None and state.step % config.save_steps == 0)
                    or state.is_best
                )
                ending = stop.shared(lambda number: largest(number, self.here))
                if ending or state.step == self.steps or any_rank(due, self.here):
                    with state.spending("pausing"):
                        self._save()
                    saved_at = time.monotonic()
                if ending and state.step < self.steps:
                    return stop.reason
        if state.broken:
            journal.say(
                f"{len(state.broken)} damaged images were replaced by others of their class: "
                f"{_listed(state.broken, len(state.broken))}"
            )
        return None

    @contextmanager
    def at_best(self) -> Iterator[bool]:
        """Put the weights of the best step into the model inside the block; yield False if there are none.

        If the run averages weights, these are the average at that step.
        """
        if self.state.best is None:
            yield False
            return
        model, path = self.objective.model, step_folder(self.writer.folder, self.state.best[1])
        last = {name: value.clone() for name, value in model.state_dict().items()}
        best = load(path, self.here.device)
        model.load_state_dict(best.model | best.optimizer.get("average", {}))
        try:
            yield True
        finally:
            model.load_state_dict(last)

    def _update_until_look(self, stop: Stop) -> Tensor:
        """Update up to the next look at the losses, at most to the epoch's end; return their terms (S, T)."""
        config, state, here = self.config, self.state, self.here
        start, begun = state.step, time.monotonic()
        end = min(start + LOOK_STEPS, (start // self.updates + 1) * self.updates)
        if config.save_steps:
            end = min(end, (start // config.save_steps + 1) * config.save_steps)
        history: list[Tensor] = []
        while state.step < end:
            first = self._first_batch(state.step)
            if config.changes_rate:
                set_rate(self.train_step.optimizer, self._rate_at(state.step))
            # The random numbers of layers such as dropout are a function of (seed, step, rank).
            key = f"{self.seed} {state.step} {here.rank}".encode()
            torch.manual_seed(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little"))
            batches = [
                batch_indices(self.seed, batch, self.n, config.batch_size, device=here.device)
                for batch in range(first, first + config.accumulate)
            ]
            index_kR = torch.stack([batch[self.train_step.rows] for batch in batches])
            history.append(self.train_step(index_kR, first).clone())
            state.step += 1
            if here.world == 1 and (stop.due() or time.monotonic() - begun > LOOK_SECONDS):
                break
        terms_ST = mean_over_ranks(torch.stack(history), here).cpu()
        bad_S = ~terms_ST.isfinite().all(1)
        if bad_S.any():
            place = int(bad_S.int().argmax())
            values, step = self.train_step.named(terms_ST[place]), start + place
            raise self._diverged(f"the loss is not finite at step {step}", step, str(values))
        return terms_ST

    def _first_batch(self, step: int) -> int:
        """Return the first batch of an update, counted over the run."""
        epoch, update = divmod(step, self.updates)
        return epoch * self.batches + update * self.config.accumulate

    def _plan(self) -> Iterator[Planned]:
        """Yield the batches to come, with the images of this rank's rows."""
        rows = self.train_step.rows.cpu()
        for step in range(self.state.step, self.steps):
            first = self._first_batch(step)
            for batch in range(first, first + self.config.accumulate):
                index_B = batch_indices(self.seed, batch, self.n, self.config.batch_size, device=CPU)
                yield Planned(batch, index_B[rows])

    def _share_broken(self) -> None:
        """Share the damaged images that each rank has found with all ranks; raise if there are too many."""
        source, images = self.train_step.source, self.train_step.source.images
        if not isinstance(images, StreamedImages):
            return
        if any_rank(len(source.broken) > len(self.state.broken), self.here):
            source.broken = self.state.broken = union(source.broken, self.here)
        skipped = images.index.skipped
        count, total = len(source.broken) + len(skipped), self.n + len(skipped)
        if count > self.max_broken * total:
            self.writer.wait()
            raise InputError(
                f"{count} of {total:,} images are damaged, more than max_broken={self.max_broken:g} allows: "
                f"{_listed(source.broken | skipped)}. Repair or remove them, or allow more."
            )

    def _rate_at(self, step: int) -> float:
        return rate_at(self.config, step, self.steps, round(self.config.warmup_epochs * self.updates))

    def _end_epoch(self) -> Record:
        """Return the means of the epoch's losses, and the monitor's figures if it is due; judge this step."""
        state, every = self.state, self.config.monitor_epochs
        epoch = state.step // self.updates
        record: Record = {"epoch": epoch, "step": state.step, **state.end_epoch(self.updates)}
        record["lr"] = self._rate_at(state.step - 1)
        if self.monitor and every and (epoch % every == 0 or epoch == self.config.epochs) and self.here.main:
            with state.spending("pausing"), self.train_step.averaged():
                record |= self.monitor(self.objective.encoder)
            self.objective.train()
        state.judge(record.get("knn"))  # "knn" is of held-out images: no step is selected on other images
        return record

    def _save(self) -> None:
        """Start to write a checkpoint; raise if weights or statistics are not finite."""
        model = self.objective.model.state_dict()
        for name, value in model.items():
            if not value.isfinite().all():
                last = self.state.step - 1
                raise self._diverged(f"weights are not finite after step {last}", last, name)
        if self.here.main:
            whole = Checkpoint(
                step=self.state.step,
                model=model,
                optimizer=self.train_step.state(),
                info=self.state.info(self.checksum, self.here.world, self.decoder),
            )
            self.writer.save(whole, self.state.best[1] if self.state.best else None)

    def _diverged(self, what: str, step: int, details: str) -> DivergedError:
        self.writer.wait()
        folder = self.writer.folder
        kept = f"The last good checkpoint is kept in {folder}." if saved(folder) else "Nothing was saved yet."
        return DivergedError(
            f"{what} (epoch {step // self.updates + 1}): {details}. {kept} "
            "Lower --lr, or --set train.clip=1 or train.precision=fp32."
        )


def _listed(broken: Mapping[str, str], most: int = 20) -> str:
    """List damaged images with the reasons."""
    some = [f"{name} ({reason})" for name, reason in islice(broken.items(), most)]
    return ", ".join(some) + (f" and {len(broken) - most} more" if len(broken) > most else "")


@contextmanager
def _callers_settings_kept(device: torch.device) -> Iterator[None]:
    """Restore the caller's random state and cuDNN's benchmark setting after the block."""
    search = torch.backends.cudnn.benchmark
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        torch.backends.cudnn.benchmark = search
