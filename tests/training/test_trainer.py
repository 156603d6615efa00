"""The loop: exact resumption, checkpoints, schedules, monitors, divergence."""

import itertools
import math
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pieces import StopAfter, Watched, contrastive, run, state, trainer
from torch import Tensor, nn

from intnacl.errors import InputError
from intnacl.training import checkpoint as checkpoints
from intnacl.training.checkpoint import newest
from intnacl.training.journal import SPENT, TIMES, Journal, records
from intnacl.training.objectives import Contrastive
from intnacl.training.ranks import Ranks
from intnacl.training.step import StepMode, TrainStep
from intnacl.training.trainer import DivergedError, Trainer
from mistakes import must_refuse


def steps(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in checkpoints.saved(folder / "checkpoints")]


def timeless(folder: Path) -> list[dict]:
    rows = records(folder / "log.jsonl")
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def assert_same(one: Trainer, other: Trainer) -> None:
    """The weights and statistics of two trainers are equal, bit by bit."""
    torch.testing.assert_close(state(one), state(other), rtol=0, atol=0)


RUNS = {
    "adam": {},
    "cosine": {"schedule": "cosine", "warmup_epochs": 0.5, "optimizer": "adamw", "weight_decay": 0.1},
    "lars": {"optimizer": "lars", "momentum": 0.9, "clip": 1.0},
    "sgd, 2 batches an update": {"optimizer": "sgd", "accumulate": 2, "epochs": 3},
    "fp16": {"precision": "fp16"},
    "averaged": {"ema": 0.9},
}


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_an_interrupted_run_equals_an_uninterrupted_one(tmp_path, settings):
    whole, pieces, ended = trainer(tmp_path / "whole", **settings), 0, "terminate"
    assert run(whole) is None
    while ended:
        pieces += 1
        made = trainer(tmp_path / "pieces", **settings)
        ended = run(made, StopAfter(2))
    assert pieces > 2
    finished = trainer(tmp_path / "pieces", **settings)
    assert run(finished) is None
    for one in (made, finished):
        assert_same(whole, one)
    assert timeless(tmp_path / "pieces") == timeless(tmp_path / "whole")


def dropping() -> Contrastive:
    """Draws from torch's own generator, as dropout and stochastic depth in timm's models do."""
    objective = contrastive("simclr")
    objective.model.head = nn.Sequential(nn.Dropout(0.5), objective.model.head)
    return objective


def test_dropout_is_a_function_of_seed_and_step(tmp_path):
    whole, watched = trainer(tmp_path / "whole", dropping()), trainer(tmp_path / "pieces", dropping())
    run(whole)
    before = torch.get_rng_state()
    run(watched, StopAfter(3))
    assert torch.equal(torch.get_rng_state(), before)
    resumed = trainer(tmp_path / "pieces", dropping())
    torch.rand(5)
    run(resumed)
    assert_same(whole, resumed)


def test_every_step_and_rank_draws_its_own_dropout(tmp_path):
    draws: dict[str, list[tuple[float, ...]]] = {"first": [], "again": [], "other": []}
    for name, drawn in draws.items():
        made = trainer(tmp_path / name, epochs=1)
        made.here = Ranks(int(name == "other"), 1, torch.device("cpu"))
        Watched(made, lambda drawn=drawn: drawn.append(tuple(torch.rand(4).tolist())))
        run(made)
    assert draws["first"] == draws["again"]
    assert len({*draws["first"], *draws["other"]}) == 8


def test_the_gradient_scale_is_resumed(tmp_path):
    begun, resumed = (trainer(tmp_path, precision="fp16") for _ in range(2))
    begun.train_step.scaler.load_state_dict(begun.train_step.scaler.state_dict() | {"scale": 64.0})
    for made in (begun, resumed):
        run(made, StopAfter(2))
    assert resumed.train_step.scaler.get_scale() == 64.0
    assert resumed.train_step.scaler.state_dict()["_growth_tracker"] > 2, "it counts on"


def test_ranks_that_find_different_checkpoints_refuse_to_resume(tmp_path, monkeypatch):
    run(trainer(tmp_path), StopAfter(1))
    # Another rank, which finds the checkpoint of step 4, answers as well.
    answer = lambda number, here: max(number, 4 if number >= 0 else -4)  # noqa: E731
    monkeypatch.setattr("intnacl.training.trainer.largest", answer)
    with pytest.raises(InputError, match=r"rank 0 finds the checkpoint of step 2 .* a disk that all"):
        trainer(tmp_path).resume()


def test_a_checkpoint_keeps_the_sums_of_its_epoch_and_names_its_images(tmp_path):
    made = trainer(tmp_path, epochs=3)
    made.checksum = "a"
    assert made.resume() is None
    assert run(made, StopAfter(5)) == "terminate"
    info = newest(tmp_path / "checkpoints").info
    assert info.keys() == {*SPENT, "sums", "best", "data", "ranks"}
    assert info["sums"]["loss"] > 0
    assert trainer(tmp_path).resume() == info
    assert (info["data"], info["ranks"]) == ("a", 1)


def test_epochs_after_the_resumed_checkpoint_are_logged_once(tmp_path):
    run(trainer(tmp_path / "whole", epochs=3))
    run(trainer(tmp_path / "run", epochs=3, save_steps=4, keep=3))
    *_, last = checkpoints.saved(tmp_path / "run" / "checkpoints")
    shutil.rmtree(last)
    run(trainer(tmp_path / "run", epochs=3, save_steps=4, keep=3))
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


@pytest.mark.parametrize("before", [False, True])
def test_the_callers_cudnn_benchmark_setting_is_restored(tmp_path, before, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
    made, seen = trainer(tmp_path, epochs=1), set()
    Watched(made, lambda: seen.add(torch.backends.cudnn.benchmark))
    run(made)
    assert (seen, torch.backends.cudnn.benchmark) == ({True}, before)


def test_more_batches_per_update_than_per_epoch_are_an_error(tmp_path):
    must_refuse(trainer, tmp_path, r"train\.accumulate=9 is more than the 4 batches .*lower it", accumulate=9)
    must_refuse(trainer, tmp_path, "batch_size=65 does not fit", batch_size=65)


def test_float64_trains_and_is_saved_as_float64(tmp_path):
    run(trainer(tmp_path, contrastive(dtype=torch.float64), precision="fp64"))
    assert newest(tmp_path / "checkpoints").model["head.0.weight"].dtype == torch.float64


def scores(*values: float) -> Callable[[nn.Module], dict[str, float]]:
    left = iter(values)
    return lambda _: {"knn": next(left)}


def test_checkpoints_are_saved_by_steps_and_the_last_and_best_are_kept(tmp_path):
    """Saved at steps 3, 6, … and 16; the best is step 4, the end of the first epoch, even after resuming."""
    knn, settings = [90.0, 10.0, 50.0, 60.0], {"epochs": 4, "save_steps": 3, "keep": 2, "monitor_epochs": 1}
    run(trainer(tmp_path / "whole", **settings, monitor=scores(*knn)))
    assert [row["knn"] for row in timeless(tmp_path / "whole")] == knn
    run(trainer(tmp_path / "pieces", **settings, monitor=scores(*knn)), StopAfter(6))
    assert steps(tmp_path / "pieces") == [4, 5]
    run(trainer(tmp_path / "pieces", **settings, monitor=scores(*knn[1:])))
    assert steps(tmp_path / "pieces") == steps(tmp_path / "whole") == [4, 15, 16]


def test_the_model_has_its_best_weights_inside_at_best(tmp_path):
    made = trainer(tmp_path / "a", epochs=3, keep=1, monitor_epochs=1, monitor=scores(10.0, 90.0, 50.0))
    shorter = trainer(tmp_path / "b", epochs=2)
    run(made), run(shorter)
    last = state(made)
    with made.at_best() as found:
        assert found
        assert_same(made, shorter)
    torch.testing.assert_close(state(made), last, rtol=0, atol=0)


def test_only_figures_of_held_out_images_select_the_best_step(tmp_path):
    made = trainer(tmp_path, epochs=3, keep=1, monitor_epochs=1, monitor=lambda _: {"knn_train": 50.0})
    run(made)
    assert steps(tmp_path) == [12]
    with made.at_best() as found:
        assert not found


def test_slow_steps_are_saved_by_the_minute_and_shown_one_by_one(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr("intnacl.training.trainer.LOOK_SECONDS", 0.0)
    monkeypatch.setattr(Journal, "progress", lambda journal, epochs, terms, speed: shown.append(epochs))
    run(trainer(tmp_path, save_minutes=0.0, keep=9))
    assert shown == [step / 4 for step in range(1, 9)], "4 updates an epoch, 2 epochs"
    assert steps(tmp_path) == list(range(1, 9))


def test_the_monitor_runs_every_n_epochs_and_at_the_end_and_does_not_change_the_run(tmp_path):
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


def test_training_continues_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """The checkpoint of step 1 is written only after the second step; it holds the first one's weights."""
    save, trained, weights = checkpoints.save, threading.Event(), []

    def before() -> None:
        weights.append(next(made.objective.model.parameters()).detach().clone())
        if made.state.step == 1:
            trained.set()

    monkeypatch.setattr(checkpoints, "save", lambda *given: trained.wait(60) and save(*given))
    made = trainer(tmp_path, epochs=1, save_steps=1, keep=9)
    Watched(made, before)
    run(made)
    name, _ = next(made.objective.model.named_parameters())
    saved = [checkpoints.load(path).model[name] for path in checkpoints.saved(tmp_path / "checkpoints")]
    assert len(saved) == made.steps
    assert all(map(torch.equal, saved[:-1], weights[1:]))


COSINE = [0.2 * (1 + math.cos(math.pi * step / 12)) for step in range(12)]
WARM_UP = [0.2] + [0.4] * 11  # over two of the four updates an epoch


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_each_update_has_its_learning_rate_and_the_last_of_an_epoch_is_logged(tmp_path, schedule):
    expected, warm_up = (WARM_UP, 0.5) if schedule == "constant" else (COSINE, 0.0)
    made = trainer(tmp_path, epochs=3, lr=0.4, schedule=schedule, warmup_epochs=warm_up)
    rates: list[float] = []
    Watched(made, lambda: rates.append(float(made.train_step.optimizer.param_groups[0]["lr"])))
    run(made)
    assert rates == pytest.approx(expected)
    assert [row["lr"] for row in timeless(tmp_path)] == pytest.approx(expected[3::4])


def test_an_epochs_terms_are_the_means_of_its_updates(tmp_path):
    made = trainer(tmp_path, epochs=2, save_steps=3)
    watched = Watched(made)
    run(made)
    means = torch.stack(watched.terms)[:, 2].view(2, 4).mean(1).tolist()
    assert [row["loss"] for row in timeless(tmp_path)] == pytest.approx(means, rel=1e-6)


@pytest.mark.parametrize(("accumulate", "first_batches"), [(2, [0, 2, 4, 6]), (3, [0, 4])])
def test_every_epoch_begins_with_its_own_batches_without_repeats(tmp_path, accumulate, first_batches):
    """An epoch has four batches; those that do not fill an update are left out."""
    made = trainer(tmp_path, epochs=2, accumulate=accumulate)
    watched = Watched(made)
    run(made)
    assert [tuple(index.shape) for index in watched.indices] == [(accumulate, 16)] * len(first_batches)
    assert watched.first_batches == first_batches
    first, second = torch.cat(watched.indices).view(2, -1)
    assert len(first.unique()) == len(second.unique()) == 16 * accumulate * (4 // accumulate)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("eager", [None, "criterion"])
def test_compilation_is_announced_and_logged_with_its_time(eager, tmp_path, monkeypatch, capsys):
    mode = StepMode(compiled=True, eager=eager, captured=True)
    monkeypatch.setattr(TrainStep, "prepare", lambda *_: time.sleep(0.2) or mode)
    run(trainer(tmp_path, epochs=2, compile=True), StopAfter(5))
    out = capsys.readouterr().out
    assert out.index("compiling the update") < out.index("updates to go")
    run(trainer(tmp_path, epochs=2, compile=True))
    last = records(tmp_path / "log.jsonl")[-1]
    assert last["compiling"] >= 0.4
    assert last["compiled"] is (eager is None)


def test_pauses_are_timed_separately_from_updates(tmp_path, monkeypatch):
    """Here a kNN accuracy takes 10 s, a checkpoint 100 s, and all else one tick of the clock."""
    ticks, later, save = itertools.count(step=1e-3), [], checkpoints.Writer.save
    fake = SimpleNamespace(monotonic=lambda: next(ticks) + sum(later))
    for module in ("trainer", "run_state"):
        monkeypatch.setattr(f"intnacl.training.{module}.time", fake)
    monkeypatch.setattr(checkpoints.Writer, "save", lambda *given: (later.append(100), save(*given)))
    run(trainer(tmp_path, epochs=2, monitor_epochs=1, monitor=lambda _: later.append(10) or {"knn": 50.0}))
    first, second = records(tmp_path / "log.jsonl")
    assert [first["pausing"], second["pausing"]] == pytest.approx([10, 120], abs=0.1)
    assert 0 < second["seconds"] < 0.5


def test_a_long_run_says_its_mode_how_long_it_will_take_and_what_is_faster(tmp_path, monkeypatch, capsys):
    """At 500 s per update of two batches of 16: after the first epoch of two updates, four are left."""
    clock = [0.0]
    monkeypatch.setattr("intnacl.training.trainer.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr("intnacl.training.trainer.LOOK_SECONDS", 1e9)
    made = trainer(tmp_path, accumulate=2, epochs=3)
    Watched(made, lambda: clock.__setitem__(0, clock[0] + 500))
    run(made)
    printed = capsys.readouterr().out
    mode, left, advice, epoch, *_ = printed.splitlines()
    assert mode == "6 updates to go, fp32, eager"
    assert left == "about 33 minutes to go at this speed"
    assert advice.startswith("an epoch takes about 17 minutes on this CPU. Faster: a GPU, --set enc")
    assert printed.count("an epoch takes") == 1
    assert epoch.startswith("epoch 1/3  nacl ")
    assert {row["images_per_s"] for row in records(tmp_path / "log.jsonl")} == {0.1}


def failing(at: int, value: float = math.nan) -> Contrastive:
    """The loss becomes something else at a step."""
    objective = contrastive()
    forward = objective.forward

    def fail(images: Tensor, labels: None, rows: Tensor, step: Tensor) -> dict[str, Tensor]:
        terms = forward(images, labels, rows, step)
        return {name: term * (value if int(step) == at else 1) for name, term in terms.items()}

    objective.forward = fail
    return objective


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_stops_names_the_step_and_keeps_the_last_good_state(tmp_path, value):
    made = trainer(tmp_path / "run", failing(5, value), save_steps=2, epochs=4)
    message = r"not finite at step 5 \(epoch 2\): .*'loss': (nan|inf).*Lower --lr"
    with pytest.raises(DivergedError, match=message):
        run(made)
    assert steps(tmp_path / "run") == [2, 4]
    resumed, whole = trainer(tmp_path / "run", epochs=4), trainer(tmp_path / "whole", epochs=4)
    run(resumed), run(whole)
    assert_same(resumed, whole)
    with pytest.raises(DivergedError, match="Nothing was saved yet") as caught:
        run(trainer(tmp_path / "at once", failing(0, value)))
    assert "checkpoint" not in str(caught.value)


@pytest.mark.parametrize("at", [5, 10**9], ids=["and diverges", "and goes on"])
def test_a_run_whose_checkpoint_cannot_be_written_ends_soon_and_claims_no_checkpoint(tmp_path, at):
    place = tmp_path / "checkpoints" / "step-000000004"
    knn = scores(*range(1000, 0, -1))  # the best epoch is the first: only its end is saved
    made = trainer(tmp_path, failing(at), epochs=1000, monitor_epochs=1, monitor=knn)
    Watched(made, lambda: (place.parent.mkdir(exist_ok=True), place.touch()))
    must_refuse(run, made, "step-000000004 could not be written: a file is where")
    assert made.state.step < 1000


def test_statistics_that_are_not_finite_are_not_saved(tmp_path):
    made = trainer(tmp_path, contrastive("simclr"))
    next(b for name, b in made.objective.model.named_buffers() if "running_var" in name).fill_(torch.nan)
    with pytest.raises(DivergedError, match=r"weights are not finite after step .*running_var"):
        run(made)
    assert not (tmp_path / "checkpoints").exists()
