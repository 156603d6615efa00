"""The loop: exact resumption, checkpoints, schedules, monitors, divergence."""

import itertools
import math
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pieces import Watched, contrastive, run, state, trainer
from torch import Tensor, nn

from intnacl.errors import InputError
from intnacl.training import checkpoint as checkpoints
from intnacl.training.checkpoint import newest
from intnacl.training.journal import SPENT, TIMES, Journal, records
from intnacl.training.objectives import Contrastive
from intnacl.training.ranks import Ranks
from intnacl.training.step import StepMode, TrainStep
from intnacl.training.stop import Stop
from intnacl.training.trainer import DivergedError, Trainer


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


def assert_same(one: Trainer, other: Trainer) -> None:
    """The weights and statistics of two trainers are equal, bit by bit."""
    a, b = state(one), state(other)
    assert all(torch.equal(a[key], b[key]) for key in a)


# ---- exact resumption ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"schedule": "cosine", "warmup_epochs": 0.5, "optimizer": "adamw", "weight_decay": 0.1},
        {"optimizer": "lars", "momentum": 0.9, "clip": 1.0},
        {"optimizer": "sgd", "accumulate": 2, "epochs": 3},
        {"precision": "fp16"},
    ],
    ids=["adam", "cosine", "lars", "sgd, 2 batches an update", "fp16"],
)
def test_a_run_in_pieces_equals_a_whole_one(tmp_path: Path, settings: dict[str, Any]) -> None:
    whole = trainer(tmp_path / "whole", **settings)
    assert run(whole) is None
    pieces = 0
    while True:
        pieces += 1
        made = trainer(tmp_path / "pieces", **settings)
        if run(made, StopAfter(2)) is None:
            break
    assert pieces > 2
    assert_same(whole, made)
    assert timeless(tmp_path / "pieces") == timeless(tmp_path / "whole")
    finished = trainer(tmp_path / "pieces", **settings)
    assert run(finished) is None
    assert_same(whole, finished)
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


def test_dropout_too_is_a_function_of_seed_and_step(tmp_path: Path) -> None:
    whole, watched = trainer(tmp_path / "whole", dropping()), trainer(tmp_path / "pieces", dropping())
    run(whole)
    before = torch.get_rng_state()
    run(watched, StopAfter(3))
    assert torch.equal(torch.get_rng_state(), before)
    resumed = trainer(tmp_path / "pieces", dropping())
    torch.rand(5)
    run(resumed)
    assert_same(whole, resumed)


def test_every_step_and_rank_draws_dropout_of_its_own(tmp_path: Path) -> None:
    def drawn(folder: str, rank: int) -> list[Tensor]:
        made = trainer(tmp_path / folder, epochs=1)
        made.here = Ranks(rank, 1, torch.device("cpu"))
        draws: list[Tensor] = []
        Watched(made, lambda: draws.append(torch.rand(4)))
        run(made)
        return draws

    first, again, second = drawn("a", 0), drawn("b", 0), drawn("c", 1)
    assert torch.equal(torch.stack(first), torch.stack(again))
    assert len({tuple(x.tolist()) for x in first + second}) == 8


def test_the_gradient_scale_is_resumed(tmp_path: Path) -> None:
    begun = trainer(tmp_path, precision="fp16")
    begun.train_step.scaler.load_state_dict(begun.train_step.scaler.state_dict() | {"scale": 64.0})
    run(begun, StopAfter(2))
    resumed = trainer(tmp_path, precision="fp16")
    run(resumed, StopAfter(2))
    assert resumed.train_step.scaler.get_scale() == 64.0
    assert resumed.train_step.scaler.state_dict()["_growth_tracker"] > 2, "it counts on"


def test_ranks_that_find_different_checkpoints_refuse_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(trainer(tmp_path), StopAfter(1))
    # Another rank, which finds the checkpoint of step 4, answers as well.
    monkeypatch.setattr(
        "intnacl.training.trainer.largest", lambda number, here: max(number, 4 if number >= 0 else -4)
    )
    with pytest.raises(InputError, match=r"rank 0 finds the checkpoint of step 2 .* a disk that all"):
        trainer(tmp_path).resume()


def test_a_checkpoint_keeps_the_sums_of_its_epoch_and_names_its_images(tmp_path: Path) -> None:
    made = trainer(tmp_path, epochs=3)
    made.checksum = "a"
    assert made.resume() is None
    assert run(made, StopAfter(5)) == "terminate"
    found = newest(tmp_path / "checkpoints")
    assert found is not None
    assert found.info.keys() == {*SPENT, "sums", "best", "data"}
    assert found.info["sums"]["loss"] > 0
    assert trainer(tmp_path).resume() == "a"


def test_epochs_after_the_checkpoint_that_is_left_are_logged_once(tmp_path: Path) -> None:
    run(trainer(tmp_path / "whole", epochs=3))
    run(trainer(tmp_path / "run", epochs=3, save_steps=4, keep=3))
    *_, last = checkpoints.saved(tmp_path / "run" / "checkpoints")
    shutil.rmtree(last)
    run(trainer(tmp_path / "run", epochs=3, save_steps=4, keep=3))
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


@pytest.mark.parametrize("before", [False, True])
def test_cudnns_search_is_the_callers_again(
    tmp_path: Path, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
    made, seen = trainer(tmp_path, epochs=1), set()
    Watched(made, lambda: seen.add(torch.backends.cudnn.benchmark))
    run(made)
    assert seen == {True}
    assert torch.backends.cudnn.benchmark == before


# ---- checkpoints and the monitor -------------------------------------------------------------------------


def scores(*values: float) -> Callable[[nn.Module], dict[str, float]]:
    left = iter(values)
    return lambda _: {"knn": next(left)}


def test_checkpoints_come_by_steps_and_the_last_ones_and_the_best_stay(tmp_path: Path) -> None:
    knn = [10.0, 90.0, 50.0, 60.0]
    run(trainer(tmp_path, epochs=4, save_steps=3, keep=2, monitor_epochs=1, monitor=scores(*knn)))
    assert steps(tmp_path) == [8, 15, 16]  # 8: the end of the second epoch, the best
    assert [row["knn"] for row in timeless(tmp_path)] == knn


def test_the_model_can_be_given_its_best_weights_for_a_while(tmp_path: Path) -> None:
    made = trainer(tmp_path / "a", epochs=3, keep=1, monitor_epochs=1, monitor=scores(10.0, 90.0, 50.0))
    run(made)
    shorter = trainer(tmp_path / "b", epochs=2)
    run(shorter)
    last = {name: value.clone() for name, value in made.objective.model.state_dict().items()}
    with made.at_best() as found:
        assert found
        assert_same(made, shorter)
    torch.testing.assert_close(made.objective.model.state_dict(), last, rtol=0, atol=0)


def test_nothing_is_chosen_by_figures_of_images_that_were_not_held_out(tmp_path: Path) -> None:
    made = trainer(tmp_path, epochs=3, keep=1, monitor_epochs=1, monitor=lambda _: {"knn_train": 50.0})
    run(made)
    assert steps(tmp_path) == [12]
    with made.at_best() as found:
        assert not found


def test_the_best_is_remembered_over_a_resumption(tmp_path: Path) -> None:
    run(trainer(tmp_path, epochs=4, monitor_epochs=1, keep=1, monitor=scores(90.0)), StopAfter(5))
    assert steps(tmp_path) == [4, 5]
    run(trainer(tmp_path, epochs=4, monitor_epochs=1, keep=1, monitor=scores(50.0, 60.0, 70.0)))
    assert steps(tmp_path) == [4, 16]


def test_slow_steps_are_saved_by_the_minute_and_shown_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intnacl.training.trainer.LOOK_SECONDS", 0.0)
    shown = []
    monkeypatch.setattr(Journal, "progress", lambda journal, epochs, terms, speed: shown.append(epochs))
    made = trainer(tmp_path, save_minutes=0.0, keep=9)
    assert run(made) is None
    assert shown == [step / 4 for step in range(1, 9)], "4 updates an epoch, 2 epochs"
    assert steps(tmp_path) == list(range(1, 9))


def test_the_monitor_looks_every_n_epochs_and_at_the_end_and_does_not_change_the_run(tmp_path: Path) -> None:
    seen = []

    def monitor(encoder: nn.Module) -> dict[str, float]:
        seen.append(encoder)
        return {"knn": encoder.eval()(torch.rand(2, 3, 8, 8)).sum().item()}

    watched = trainer(tmp_path / "a", epochs=5, monitor_epochs=2, monitor=monitor)
    blind = trainer(tmp_path / "b", epochs=5, monitor_epochs=0)
    run(watched), run(blind)
    assert ["knn" in row for row in timeless(tmp_path / "a")] == [False, True, False, True, True]
    assert seen[0] is watched.objective.encoder
    assert watched.objective.model.training
    assert_same(watched, blind)


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of step 1 is written only after the second step; it holds the first one's weights."""
    save, trained = checkpoints.save, threading.Event()
    weights: list[Tensor] = []

    def slowly(folder: Path, given: checkpoints.Checkpoint) -> Path:
        assert trained.wait(60)
        return save(folder, given)

    def before() -> None:
        weights.append(next(made.objective.model.parameters()).detach().clone())
        if made.state.step == 1:
            trained.set()

    monkeypatch.setattr(checkpoints, "save", slowly)
    made = trainer(tmp_path, epochs=1, save_steps=1, keep=9)
    Watched(made, before)
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
    # The best epoch is the first: only its end is saved.
    made = trainer(tmp_path, epochs=1000, monitor_epochs=1, monitor=scores(*range(1000, 0, -1)))
    with pytest.raises(InputError, match="no space left"):
        run(made)
    assert made.state.step < 1000


# ---- rates, batches and records --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"warmup_epochs": 0.5}, [0.2] + [0.4] * 11),  # of two of the four updates an epoch
        ({"schedule": "cosine"}, [0.2 * (1 + math.cos(math.pi * step / 12)) for step in range(12)]),
    ],
    ids=["warm-up, then constant", "cosine without warm-up"],
)
def test_each_update_has_its_rate_and_an_epochs_last_is_logged(
    tmp_path: Path, settings: dict[str, Any], expected: list[float]
) -> None:
    made, rates = trainer(tmp_path, epochs=3, lr=0.4, **settings), []
    Watched(made, lambda: rates.append(float(made.train_step.optimizer.param_groups[0]["lr"])))
    run(made)
    assert rates == pytest.approx(expected)
    assert [row["lr"] for row in timeless(tmp_path)] == pytest.approx(expected[3::4])


def test_an_epochs_terms_are_the_means_of_its_updates(tmp_path: Path) -> None:
    made = trainer(tmp_path, epochs=2, save_steps=3)
    watched = Watched(made)
    run(made)
    losses = torch.stack(watched.terms)[:, 2]
    assert [row["loss"] for row in timeless(tmp_path)] == pytest.approx(
        [losses[:4].mean().item(), losses[4:].mean().item()], rel=1e-6
    )


@pytest.mark.parametrize(("accumulate", "first_batches"), [(2, [0, 2, 4, 6]), (3, [0, 4])])
def test_every_epoch_begins_with_its_own_batches_and_shows_no_image_twice(
    tmp_path: Path, accumulate: int, first_batches: list[int]
) -> None:
    """Of four batches an epoch; those that do not fill an update are left out."""
    made = trainer(tmp_path, epochs=2, accumulate=accumulate)
    watched = Watched(made)
    run(made)
    assert [tuple(index.shape) for index in watched.indices] == [(accumulate, 16)] * len(first_batches)
    assert watched.first_batches == first_batches
    first, second = torch.cat(watched.indices).view(2, -1)
    assert len(first.unique()) == len(second.unique()) == 16 * accumulate * (4 // accumulate)
    assert not torch.equal(first, second)


def test_more_batches_an_update_than_there_are_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train\.accumulate=9 is more than the 4 batches .*lower it"):
        trainer(tmp_path, accumulate=9)
    with pytest.raises(InputError, match="batch_size=65 does not fit"):
        trainer(tmp_path, batch_size=65)


def test_float64_trains_and_is_saved_as_float64(tmp_path: Path) -> None:
    run(trainer(tmp_path, contrastive(dtype=torch.float64), precision="fp64"))
    found = newest(tmp_path / "checkpoints")
    assert found is not None
    assert found.model["head.0.weight"].dtype == torch.float64


def test_the_mode_of_updates_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(trainer(tmp_path))
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "8 updates to go, fp32, eager"
    assert out[1].startswith("epoch 1/2  nacl ")


@pytest.mark.parametrize("eager", [None, "criterion"])
def test_compilation_is_announced_and_logged_with_its_time_over_all_processes(
    eager: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def slowly(*_: Any) -> StepMode:
        time.sleep(0.2)
        return StepMode(compiled=True, eager=eager, captured=True)

    monkeypatch.setattr(TrainStep, "prepare", slowly)
    run(trainer(tmp_path, epochs=2, compile=True), StopAfter(5))
    out = capsys.readouterr().out
    assert out.index("compiling the update") < out.index("updates to go")
    run(trainer(tmp_path, epochs=2, compile=True))
    last = records(tmp_path / "log.jsonl")[-1]
    assert last["compiling"] >= 0.4
    assert last["compiled"] is (eager is None)


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
    run(trainer(tmp_path, epochs=2, monitor_epochs=1, monitor=lambda _: wait(10.0) or {"knn": 50.0}))
    first, second = records(tmp_path / "log.jsonl")
    assert [first["pausing"], second["pausing"]] == pytest.approx([10, 120], abs=0.1)
    assert 0 < second["seconds"] < 0.5


def run_at_seconds_an_update(made: Trainer, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the trainer's clock, which stands still otherwise."""
    now = itertools.count(step=seconds)
    clock = [next(now)]
    monkeypatch.setattr("intnacl.training.trainer.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr("intnacl.training.trainer.LOOK_SECONDS", 1e9)
    Watched(made, lambda: clock.__setitem__(0, next(now)))
    run(made)


def test_images_per_second_count_every_batch_of_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two batches of 16 images an update."""
    run_at_seconds_an_update(trainer(tmp_path, accumulate=2), 4.0, monkeypatch)
    assert [row["images_per_s"] for row in records(tmp_path / "log.jsonl")] == [8.0, 8.0]


def test_a_long_run_says_after_its_first_steps_how_long_it_will_take_and_what_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of eight updates; the losses are looked at after four, which are an epoch."""
    run_at_seconds_an_update(trainer(tmp_path), 500.0, monkeypatch)
    printed = capsys.readouterr().out
    assert "about 33 minutes to go at this speed" in printed
    assert printed.count("an epoch takes about 33 minutes on this CPU. Faster: a GPU, --set enc") == 1


# ---- divergence ------------------------------------------------------------------------------------------


class Failing(Contrastive):
    """The loss becomes something else at a step."""

    at, value = 5, float("nan")

    def forward(self, images: Any, labels: Any, rows: Any, step: Any) -> dict[str, torch.Tensor]:
        terms = super().forward(images, labels, rows, step)
        return {name: term * (self.value if int(step) == self.at else 1) for name, term in terms.items()}


def failing(at: int, value: float = math.nan) -> Contrastive:
    objective = contrastive()
    objective.__class__ = Failing
    objective.at, objective.value = at, value
    return objective


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_names_the_step_and_keeps_the_last_good_state(
    tmp_path: Path, value: float
) -> None:
    made = trainer(tmp_path / "run", failing(5, value), save_steps=2, epochs=4)
    with pytest.raises(
        DivergedError, match=r"not finite at step 5 \(epoch 2\): .*'loss': (nan|inf).*Lower --lr"
    ):
        run(made)
    assert steps(tmp_path / "run") == [2, 4]
    resumed, whole = trainer(tmp_path / "run", epochs=4), trainer(tmp_path / "whole", epochs=4)
    run(resumed), run(whole)
    assert_same(resumed, whole)


def test_a_loss_that_is_not_finite_at_once_promises_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="Nothing was saved yet") as caught:
        run(trainer(tmp_path, failing(0)))
    assert "checkpoint" not in str(caught.value)


def test_a_run_that_diverges_while_its_checkpoint_fails_promises_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverging = threading.Event()

    def fail(*_: object) -> None:
        assert diverging.wait(60)
        full()

    monkeypatch.setattr(checkpoints, "save", fail)
    made = trainer(tmp_path, failing(5), save_steps=4)
    Watched(made, lambda: made.state.step == 5 and diverging.set())
    with pytest.raises(InputError, match="no space left"):
        run(made)


def test_statistics_that_are_no_numbers_do_not_become_a_checkpoint(tmp_path: Path) -> None:
    made = trainer(tmp_path, contrastive("simclr"))
    (statistics, *_) = (b for name, b in made.objective.model.named_buffers() if "running_var" in name)
    statistics.fill_(torch.nan)
    with pytest.raises(DivergedError, match=r"weights are not finite after step .*running_var"):
        run(made)
    assert not (tmp_path / "checkpoints").exists()
