"""The loop: exact resumption, checkpoints, schedules, monitors, divergence."""

import itertools
import json
import math
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pieces import contrastive, run, state, trainer
from torch import Tensor, nn

from intnacl.errors import InputError
from intnacl.training import checkpoint as checkpoints
from intnacl.training.checkpoint import newest
from intnacl.training.journal import SPENT, TIMES, Journal, records
from intnacl.training.objectives import Contrastive
from intnacl.training.ranks import Ranks
from intnacl.training.step import StepMode, Stepper
from intnacl.training.stop import Stop
from intnacl.training.trainer import DivergedError, Trainer, _resident


class StopAfter(Stop):
    """Stops after so many updates."""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self.left = updates

    def due(self) -> bool:
        self.left -= 1
        if self.left < 0:
            self.reason = "terminate"
        return self.reason is not None


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*"))


def timeless(folder: Path) -> list[dict]:
    rows = records(folder / "log.jsonl")
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {},
    "cosine": {"schedule": "cosine", "warmup_epochs": 0.5, "optimizer": "adamw", "weight_decay": 0.1},
    "lars": {"optimizer": "lars", "momentum": 0.9, "clip": 1.0},
    "sgd, 2 batches an update": {"optimizer": "sgd", "accumulate": 2, "epochs": 3},
    "fp16": {"precision": "fp16"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_in_pieces_equals_a_whole_one(tmp_path: Path, name: str) -> None:
    settings = SETTINGS[name]
    whole = trainer(tmp_path / "whole", **settings)
    assert run(whole) is None
    pieces = 0
    while True:
        made = trainer(tmp_path / "pieces", **settings)
        pieces += 1
        if run(made, StopAfter(2)) is None:
            break
    assert pieces > 2
    one, many = state(whole), state(made)
    assert all(torch.equal(one[key], many[key]) for key in one)
    assert timeless(tmp_path / "pieces") == timeless(tmp_path / "whole")


class Dropping(nn.Module):
    """Draws from torch's own generator, as dropout and stochastic depth in timm's models do."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), head

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(features))


def dropping() -> Contrastive:
    objective = contrastive("simclr")
    objective.model.head = Dropping(objective.model.head)
    return objective


@pytest.mark.parametrize("before", [False, True])
def test_cudnns_search_is_the_callers_again(
    tmp_path: Path, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
    seen = []
    made = trainer(
        tmp_path, monitor=lambda encoder: seen.append(torch.backends.cudnn.benchmark) or {}, epochs=1
    )
    run(made)
    assert seen == [True]
    assert torch.backends.cudnn.benchmark == before


def test_dropout_too_is_a_function_of_seed_and_step(tmp_path: Path) -> None:
    whole, watched = trainer(tmp_path / "whole", dropping()), trainer(tmp_path / "pieces", dropping())
    run(whole)
    before = torch.get_rng_state()
    run(watched, StopAfter(3))
    assert torch.equal(torch.get_rng_state(), before)
    resumed = trainer(tmp_path / "pieces", dropping())
    torch.rand(5)
    run(resumed)
    one, many = state(whole), state(resumed)
    assert all(torch.equal(one[key], many[key]) for key in one)


def test_every_step_draws_dropout_of_its_own(tmp_path: Path) -> None:
    made, drawn = trainer(tmp_path), []
    with torch.random.fork_rng():
        for made.state.step in (0, 1):
            made._seed_layers()
            drawn.append(torch.rand(4))
    assert not torch.equal(*drawn)


def test_ranks_draw_dropout_of_their_own(tmp_path: Path) -> None:
    made, drawn = trainer(tmp_path), []
    with torch.random.fork_rng():
        for rank in (0, 1, 0):
            made.here = Ranks(rank, 2, torch.device("cpu"))
            made._seed_layers()
            drawn.append(torch.rand(4))
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


def test_the_gradient_scale_is_resumed(tmp_path: Path) -> None:
    begun = trainer(tmp_path, precision="fp16")
    begun.stepper.scaler.load_state_dict(begun.stepper.scaler.state_dict() | {"scale": 64.0})
    run(begun, StopAfter(2))
    resumed = trainer(tmp_path, precision="fp16")
    run(resumed, StopAfter(2))
    assert resumed.stepper.scaler.get_scale() == 64.0
    assert resumed.stepper.scaler.state_dict()["_growth_tracker"] > 2, "it counts on"


def test_ranks_that_find_different_checkpoints_refuse_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(trainer(tmp_path), StopAfter(1))
    # Another rank, which finds the checkpoint of step 4, answers as well.
    monkeypatch.setattr(
        "intnacl.training.trainer.largest", lambda number, here: max(number, 4 if number >= 0 else -4)
    )
    with pytest.raises(InputError, match=r"rank 0 finds the checkpoint of step 2 .* a disk that all"):
        run(trainer(tmp_path))


def test_checkpoints_come_by_steps_and_the_last_ones_and_the_best_stay(tmp_path: Path) -> None:
    scores = iter([10.0, 90.0, 50.0, 60.0])
    made = trainer(
        tmp_path, epochs=4, save_steps=3, keep=2, monitor_epochs=1, monitor=lambda _: {"knn": next(scores)}
    )
    run(made)
    assert steps(tmp_path) == [8, 15, 16]  # 8: the end of the second epoch, the best
    assert [row["knn"] for row in timeless(tmp_path)] == [10.0, 90.0, 50.0, 60.0]


def test_slow_steps_are_saved_by_the_minute_and_shown_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intnacl.training.trainer.PATIENCE", 0.0)
    shown = []
    monkeypatch.setattr(Journal, "progress", lambda journal, epochs, terms, speed: shown.append(epochs))
    made = trainer(tmp_path, save_minutes=0.0, keep=9)
    assert run(made) is None
    assert shown == [step / 4 for step in range(1, 9)], "4 updates an epoch, 2 epochs"
    assert steps(tmp_path) == list(range(1, 9))


def test_a_checkpoint_names_the_images_it_was_trained_on(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.checksum = "a"
    assert made.resume() is None
    assert run(made, StopAfter(3)) == "terminate"
    assert trainer(tmp_path).resume() == "a"


def test_the_best_is_remembered_over_a_resumption(tmp_path: Path) -> None:
    def monitor(values: list[float]) -> Any:
        scores = iter(values)
        return lambda _: {"knn": next(scores)}

    run(trainer(tmp_path, epochs=4, monitor_epochs=1, keep=1, monitor=monitor([90.0])), StopAfter(5))
    assert steps(tmp_path) == [4, 5]
    run(trainer(tmp_path, epochs=4, monitor_epochs=1, keep=1, monitor=monitor([50.0, 60.0, 70.0])))
    assert steps(tmp_path) == [4, 16]


def test_the_monitor_looks_every_n_epochs_and_at_the_end_and_leaves_train_mode(tmp_path: Path) -> None:
    seen = []

    def monitor(encoder: nn.Module) -> dict[str, float]:
        encoder.eval()
        seen.append(encoder)
        return {"knn": 1.0}

    made = trainer(tmp_path, epochs=5, monitor_epochs=2, monitor=monitor)
    run(made)
    assert ["knn" in row for row in timeless(tmp_path)] == [False, True, False, True, True]
    assert seen[0] is made.objective.encoder
    assert made.objective.model.training


def test_watching_does_not_change_the_run(tmp_path: Path) -> None:
    watched = trainer(
        tmp_path / "a",
        monitor_epochs=1,
        monitor=lambda e: {"knn": e.eval()(torch.rand(2, 3, 8, 8)).sum().item()},
    )
    blind = trainer(tmp_path / "b", monitor_epochs=0)
    run(watched), run(blind)
    a, b = state(watched), state(blind)
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_the_rate_of_each_epoch_is_logged(tmp_path: Path) -> None:
    run(trainer(tmp_path, epochs=3, lr=0.4, schedule="cosine", warmup_epochs=1))
    rates = [row["lr"] for row in timeless(tmp_path)]
    assert rates[0] == 0.4
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[2] < 0.1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"warmup_epochs": 0.5}, [0.2, 0.4, 0.4]),  # two of the four updates an epoch
        ({"schedule": "cosine"}, [0.2 * (1 + math.cos(math.pi * step / 12)) for step in range(3)]),
    ],
    ids=["warm-up, then constant", "cosine without warm-up"],
)
def test_each_update_has_its_rate(tmp_path: Path, settings: dict[str, Any], expected: list[float]) -> None:
    rates = []
    for _ in range(3):
        made = trainer(tmp_path, epochs=3, lr=0.4, **settings)
        run(made, StopAfter(0))  # an update each
        rates.append(float(made.optimizer.param_groups[0]["lr"]))
    assert rates == pytest.approx(expected)


def test_an_epochs_terms_are_the_means_of_its_updates(tmp_path: Path) -> None:
    made = trainer(tmp_path, epochs=1, save_steps=3)
    seen = []
    step = made.stepper.__class__.__call__
    made.stepper.__class__ = type("Seen", (type(made.stepper),), {
        "__call__": lambda self, *a: seen.append(step(self, *a)) or seen[-1],
    })  # fmt: skip
    run(made)
    assert timeless(tmp_path)[0]["loss"] == pytest.approx(torch.stack(seen)[:, 2].mean().item(), rel=1e-6)


def test_every_image_is_seen_once_an_epoch(tmp_path: Path) -> None:
    made = trainer(tmp_path, epochs=2, accumulate=2)
    seen: list[torch.Tensor] = []
    clocks = []
    made.stepper.__class__ = type("Seen", (type(made.stepper),), {
        "__call__": lambda self, index, clock: (
            seen.append(index), clocks.append(clock), setattr(self, "names", ["loss"]), torch.zeros(1),
        )[-1],
    })  # fmt: skip
    run(made)
    assert [tuple(index.shape) for index in seen] == [(2, 16)] * 4
    first, second = torch.cat(seen[:2]).flatten(), torch.cat(seen[2:]).flatten()
    assert torch.equal(first.sort().values, torch.arange(64))
    assert torch.equal(second.sort().values, torch.arange(64))
    assert not torch.equal(first, second)
    assert clocks == [0, 2, 4, 6]


# ---- divergence ------------------------------------------------------------------------------------------


class Failing(Contrastive):
    """The loss becomes something else at a step."""

    at, what = 5, float("nan")

    def forward(self, images: Any, labels: Any, rows: Any, step: Any) -> dict[str, torch.Tensor]:
        terms = super().forward(images, labels, rows, step)
        return {name: value * (self.what if int(step) == self.at else 1) for name, value in terms.items()}


def failing(at: int, what: float) -> Contrastive:
    objective = contrastive()
    objective.__class__ = Failing
    objective.at, objective.what = at, what
    return objective


@pytest.mark.parametrize("what", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_names_the_step_and_keeps_the_last_good_state(
    tmp_path: Path, what: float
) -> None:
    made = trainer(tmp_path, failing(5, what), save_steps=2, epochs=4)
    with pytest.raises(
        DivergedError, match=r"not finite at step 5 \(epoch 2\): .*'loss': (nan|inf).*Lower --lr"
    ):
        run(made)
    assert steps(tmp_path) == [2, 4]
    found = newest(tmp_path / "checkpoints")
    assert found is not None
    assert all(value.isfinite().all() for value in found.model.values())


def test_a_loss_that_is_not_finite_at_once_promises_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="Nothing was saved yet") as caught:
        run(trainer(tmp_path, failing(0, float("nan"))))
    assert "checkpoint" not in str(caught.value)


def test_weights_that_are_not_finite_never_become_a_checkpoint(tmp_path: Path) -> None:
    made = trainer(tmp_path, save_steps=1, epochs=4, optimizer="sgd", lr=1e38)
    with pytest.raises(DivergedError, match=r"not finite (at|after) step \d+ \(epoch 1\).*train\.clip=1"):
        run(made)
    found = newest(tmp_path / "checkpoints")
    assert found is None or all(value.isfinite().all() for value in found.model.values())


def test_a_run_can_go_on_from_the_last_good_state_with_the_same_end(tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        run(trainer(tmp_path / "run", failing(5, float("nan")), save_steps=2))
    resumed, whole = trainer(tmp_path / "run", save_steps=2), trainer(tmp_path / "whole")
    run(resumed), run(whole)
    a, b = state(resumed), state(whole)
    assert all(torch.equal(a[key], b[key]) for key in a)


# ---- odds and ends ---------------------------------------------------------------------------------------


def test_a_finished_run_only_loads_its_end(tmp_path: Path) -> None:
    first = trainer(tmp_path)
    run(first)
    second = trainer(tmp_path)
    assert run(second) is None
    a, b = state(first), state(second)
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert len(timeless(tmp_path)) == 2


def test_float64_trains_and_is_saved_as_float64(tmp_path: Path) -> None:
    made = trainer(tmp_path, contrastive(dtype=torch.float64), precision="fp64")
    run(made)
    found = newest(tmp_path / "checkpoints")
    assert found is not None
    assert found.model["head.0.weight"].dtype == torch.float64


def test_the_way_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(trainer(tmp_path))
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "8 updates to go, fp32, eager"
    assert out[1].startswith("epoch 1/2  nacl ")


def test_more_batches_an_update_than_there_are_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train\.accumulate=9 is more than the 4 batches .*lower it"):
        trainer(tmp_path, accumulate=9)
    with pytest.raises(InputError, match="batch_size=65 does not fit"):
        trainer(tmp_path, batch_size=65)


def test_info_survives_json(tmp_path: Path) -> None:
    run(trainer(tmp_path, epochs=3), StopAfter(5))
    (path,) = (tmp_path / "checkpoints").glob("step-*")
    info = json.loads((path / "state.json").read_text())["info"]
    assert info.keys() == {*SPENT, "sums", "best", "data"}
    assert info["sums"]["loss"] > 0


def test_compilation_is_announced_and_timed_over_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def slowly(*_: Any, **__: Any) -> StepMode:
        time.sleep(0.2)
        return StepMode(plain=(), captured=True)

    monkeypatch.setattr(Stepper, "prepare", slowly)
    run(trainer(tmp_path, epochs=2, compile=True), StopAfter(5))
    told = capsys.readouterr().out
    assert told.index("compiling the update") < told.index("updates to go")
    run(trainer(tmp_path, epochs=2, compile=True))
    last = records(tmp_path / "log.jsonl")[-1]
    assert last["compiling"] >= 0.4
    assert last["compiled"] is True


def test_pauses_are_timed_apart_from_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kNN accuracy takes 10 s here, a checkpoint 100, all else a tick; an epoch's follows its record."""
    clock, save = itertools.count(step=1e-3), checkpoints.Writer.save
    later = [0.0]
    fake = SimpleNamespace(monotonic=lambda: next(clock) + later[0])
    for module in ("trainer", "run_state"):
        monkeypatch.setattr(f"intnacl.training.{module}.time", fake)

    def wait(seconds: float) -> None:
        later[0] += seconds

    monkeypatch.setattr(checkpoints.Writer, "save", lambda *given: (wait(100.0), save(*given)))
    made = trainer(tmp_path, epochs=2, monitor_epochs=1)
    made.monitor = lambda _: wait(10.0) or {"knn": 50.0}
    run(made)
    first, second = records(tmp_path / "log.jsonl")
    assert [first["pausing"], second["pausing"]] == pytest.approx([10, 120], abs=0.1)
    assert 0 < second["seconds"] < 0.5


def every_update_takes(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the trainer's clock, which stands still otherwise."""
    now, update = [0.0], Stepper.__call__
    monkeypatch.setattr("intnacl.training.trainer.time", SimpleNamespace(monotonic=lambda: now[0]))

    def slowly(self: Stepper, *given: Any) -> Tensor:
        now[0] += seconds
        return update(self, *given)

    monkeypatch.setattr(Stepper, "__call__", slowly)


def test_images_per_second_count_every_batch_of_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two batches of 16 images an update."""
    every_update_takes(4.0, monkeypatch)
    run(trainer(tmp_path, accumulate=2))
    assert [row["images_per_s"] for row in records(tmp_path / "log.jsonl")] == [8.0, 8.0]


def test_a_long_run_says_after_its_first_steps_how_long_it_will_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of eight updates; the losses are looked at after four, which are an epoch."""
    every_update_takes(500.0, monkeypatch)
    monkeypatch.setattr("intnacl.training.trainer.PATIENCE", 1e9)
    run(trainer(tmp_path))
    assert "about 33 minutes to go at this speed" in capsys.readouterr().out


def test_epochs_after_the_checkpoint_that_is_left_are_logged_once(tmp_path: Path) -> None:
    run(trainer(tmp_path / "whole", epochs=3))
    run(trainer(tmp_path / "run", epochs=3, save_steps=4, keep=3))
    *_, last = checkpoints.saved(tmp_path / "run" / "checkpoints")
    shutil.rmtree(last)
    run(trainer(tmp_path / "run", epochs=3, save_steps=4, keep=3))
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of step 1 is written only after the second step; it holds the first one's weights."""
    save, trained = checkpoints.save, threading.Event()

    def slowly(folder: Path, given: checkpoints.Checkpoint) -> Path:
        assert trained.wait(60)
        return save(folder, given)

    monkeypatch.setattr(checkpoints, "save", slowly)
    made, step = trainer(tmp_path, epochs=1, save_steps=1, keep=9), Trainer._one_step
    weights: list[Tensor] = []

    def one_step(self: Trainer) -> Tensor:
        weights.append(next(self.objective.model.parameters()).detach().clone())
        if self.state.step == 1:
            trained.set()
        return step(self)

    monkeypatch.setattr(Trainer, "_one_step", one_step)
    run(made)
    paths = checkpoints.saved(tmp_path / "checkpoints")
    name = next(name for name, _ in made.objective.model.named_parameters())
    saved = [checkpoints.load(path).model[name] for path in paths]
    assert len(saved) == made.steps
    assert all(torch.equal(a, b) for a, b in zip(saved[:-1], weights[1:], strict=True))


def full(*_: object) -> None:
    """In the place of `checkpoints.save`."""
    raise InputError("no space left")


def test_a_checkpoint_that_cannot_be_written_ends_training_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "save", full)
    made, due = trainer(tmp_path, epochs=1000), iter([True])
    monkeypatch.setattr(made, "_save_is_due", lambda _: next(due, False))  # once, and not again
    with pytest.raises(InputError, match="no space left"):
        run(made)
    assert made.state.step < 1000


def test_statistics_that_are_no_numbers_do_not_become_a_checkpoint(tmp_path: Path) -> None:
    made = trainer(tmp_path, contrastive("simclr"))
    (statistics, *_) = (b for name, b in made.objective.model.named_buffers() if "running_var" in name)
    statistics.fill_(torch.nan)
    with pytest.raises(DivergedError, match=r"not finite after step .*running_var"):
        run(made)
    assert steps(tmp_path) == []


def test_images_that_do_not_fit_on_the_device_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 200.00 GiB")

    images = torch.zeros(4096, 3, 96, 96, dtype=torch.uint8)
    monkeypatch.setattr(Tensor, "to", no_room)
    with pytest.raises(InputError, match=r"the 4,096 images take 0\.1 GiB on cpu.*smaller ones"):
        _resident(images, torch.device("cpu"))


def test_a_run_that_diverges_where_nothing_could_be_saved_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(tmp_path)
    with pytest.raises(DivergedError, match="Nothing was saved yet"):
        made._diverged("the loss is not finite", 0, "nan")
    monkeypatch.setattr(checkpoints, "save", full)
    made._save()
    with pytest.raises(InputError, match="no space left"):
        made._diverged("the loss is not finite", 0, "nan")


@pytest.mark.parametrize("plain", [None, ("criterion",)])
def test_a_compiler_that_fails_is_in_the_log(
    plain: tuple[str, ...] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stepper, "prepare", lambda *_, **__: StepMode(plain=plain, captured=True))
    run(trainer(tmp_path, epochs=1, compile=True))
    assert records(tmp_path / "log.jsonl")[-1]["compiled"] is False


def test_the_log_holds_every_epochs_own_mean(tmp_path: Path) -> None:
    run(trainer(tmp_path, lr=1e-9))
    first, second = (record["loss"] for record in records(tmp_path / "log.jsonl"))
    assert second == pytest.approx(first, rel=0.2)


def test_weights_that_are_no_numbers_are_not_saved(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    next(made.objective.model.parameters()).data.fill_(torch.nan)
    with pytest.raises(DivergedError, match="weights are not finite"):
        made._save()
    assert not (tmp_path / "checkpoints").exists()


def test_an_epoch_begins_with_its_own_batches_where_updates_leave_some_over(tmp_path: Path) -> None:
    made, begun = trainer(tmp_path, accumulate=3), []
    indices = made._indices
    made._indices = lambda first: begun.append(first) or indices(first)
    run(made)
    assert begun == [0, 4]  # an epoch has 4 batches
