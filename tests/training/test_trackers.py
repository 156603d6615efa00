"""Trackers: TensorBoard and Weights & Biases get the log's figures once, however often a run resumes."""

import sys
from pathlib import Path

import pytest
import wandb

from intnacl.errors import InputError, InputWarning
from intnacl.training.journal import Journal, curves, records
from intnacl.training.trackers import TRACKERS, TensorBoard, Tracker, Tracking, WandB, check_trackers
from mistakes import must_refuse, refused
from wandb_files import offline, read_run, runs

CONFIG = {"train.lr": 0.001, "dataset": "digits"}


def tracking(folder: Path, *trackers: Tracker) -> Tracking:
    return Tracking(trackers, id="0123456789abcdef", folder=folder, config=CONFIG)


def train(folder: Path, kept: int, loss: float, *trackers: Tracker, active: bool = True) -> None:
    """Act as a process that resumes after `kept` epochs and reports figures up to the fourth."""
    log = folder / "log.jsonl"
    with Journal(log, epochs=4, active=active, tracking=tracking(folder, *trackers)) as journal:
        journal.rewind(10 * kept)
        for epoch in range(kept + 1, 5):
            own = {"epoch": epoch, "step": 10 * epoch, "loss": loss / epoch, "compiled": 0.0, "ranks": 1}
            journal.epoch({**own, "images_per_s": 1234.5, "seconds": 2.0, "nacl": loss, "robust": 0.0})


class Noted:
    """A custom tracker that records its calls and fails in one of them."""

    def __init__(self, fails_in: str = "") -> None:
        self.calls, self.fails_in = [], fails_in

    def _note(self, name, *given):
        self.calls.append((name, *given))
        if name == self.fails_in:
            raise ConnectionError("no route to host.")

    def begin(self, run):
        self._note("begin", run.id, dict(run.epochs))

    def epoch(self, epoch, figures):
        self._note("epoch", epoch, dict(figures))

    def result(self, figures):
        self._note("result", dict(figures))

    def end(self):
        self._note("end")


def figures(loss: float) -> dict[str, float]:
    return {"loss": loss, "images_per_s": 1234.5}  # `nacl` repeats the loss, and the others have no curve


def test_a_custom_tracker_gets_the_run_its_figures_and_its_end(tmp_path):
    first, second, idle = Noted(), Noted(), Noted()
    train(tmp_path, 0, 12.0, first)
    assert first.calls == [
        ("begin", "0123456789abcdef", {}),
        *(("epoch", epoch, figures(12.0 / epoch)) for epoch in (1, 2, 3, 4)),
        ("end",),
    ]
    train(tmp_path, 3, 12.0, second)
    done = {epoch: figures(12.0 / epoch) for epoch in (1, 2, 3)}
    assert second.calls == [
        ("begin", "0123456789abcdef", done), ("epoch", 4, figures(3.0)), ("end",)
    ]  # fmt: skip
    train(tmp_path, 0, 1.0, idle, active=False)
    assert idle.calls == [], "of another rank"


def test_a_tracker_that_fails_in_begin_ends_the_command_and_one_that_fails_later_is_dropped(tmp_path):
    must_refuse(
        train, tmp_path, 0, 1.0, Noted("begin"), r"tracker Noted cannot begin: ConnectionError: no route to"
    )
    failing, other = Noted("epoch"), Noted()
    with pytest.warns(InputWarning, match=r"Noted failed .*no route to host\): the run continues") as w:
        train(tmp_path, 0, 1.0, failing, other)
    assert len(w) == 1
    assert [name for name, *_ in failing.calls] == ["begin", "epoch"]
    assert [name for name, *_ in other.calls] == ["begin", *["epoch"] * 4, "end"]
    assert [row["epoch"] for row in records(tmp_path / "log.jsonl")] == [1, 2, 3, 4]
    with pytest.warns(InputWarning, match="no route to host"):  # all is measured by then
        tracking(tmp_path, late := Noted("begin")).finish({}, {"accuracy/digits/clean": 97.0})
    assert [name for name, *_ in late.calls] == ["begin"]


test_what_is_no_tracker = refused(
    check_trackers,
        ("wandb", r"trackers='wandb' is not a list: give \[TRACKER\]"),
        (["wandb"], r"'wandb' is not a tracker: a name goes into the settings, as {'train.trackers': \["),
        ([object()], "is not a tracker: give an object with the methods begin, epoch, result and end"),
        ([Noted], "is not a tracker: give an object"),
)  # fmt: skip


@pytest.mark.parametrize("name", TRACKERS)
def test_without_its_package_the_error_says_how_to_install_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, {"tensorboard": "torch.utils.tensorboard"}.get(name, name), None)
    with pytest.raises(InputError, match=rf"the tracker {name} needs .*: pip install '/.*\[{name}\]'"):
        TRACKERS[name]()


@pytest.mark.parametrize("kept", [4, 2, 0], ids=["whole", "resumed", "begun again"])
def test_tensorboard_shows_every_epoch_once(tmp_path, kept):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, 0, 12.0, TensorBoard())
    train(tmp_path, kept, 60.0, TensorBoard())
    folder = tmp_path / "tensorboard"
    assert len(list(folder.iterdir())) == (1 if kept == 4 else 2)  # one for each process
    done = curves(records(tmp_path / "log.jsonl"))
    tracking(tmp_path, TensorBoard()).finish(done, {"accuracy/digits/clean": 97.0})
    events = EventAccumulator(str(folder)).Reload()
    assert events.Tags()["scalars"] == ["loss", "images_per_s", "accuracy/digits/clean"]
    losses = [12.0, 6.0, 4.0, 3.0][:kept] + [60.0, 30.0, 20.0, 15.0][kept:]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == list(enumerate(losses, start=1))
    assert [(event.step, event.value) for event in events.Scalars("accuracy/digits/clean")] == [(4, 97.0)]


@pytest.fixture
def wandb_offline(tmp_path_factory, monkeypatch):
    with offline(tmp_path_factory.mktemp("wandb")) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield
        wandb.teardown()  # the process that writes


@pytest.mark.usefixtures("wandb_offline")
def test_offline_the_newest_wandb_folder_holds_the_whole_run(tmp_path):
    train(tmp_path, 0, 12.0, WandB(tags=["mine"]))
    train(tmp_path, 2, 60.0, WandB())
    done = curves(records(tmp_path / "log.jsonl"))
    tracking(tmp_path, WandB()).finish(done, {"accuracy/digits/clean": 97.0})
    begun, resumed, finished = map(read_run, runs(tmp_path))
    for name, settings, *_ in (begun, resumed, finished):
        assert (name, settings) == ("0123456789abcdef", CONFIG), "they are one run"
    assert begun[2] == {epoch: figures(12.0 / epoch) for epoch in (1, 2, 3, 4)}
    assert (
        resumed[2]
        == finished[2]
        == {epoch: figures((12 if epoch < 3 else 60) / epoch) for epoch in range(1, 5)}
    )
    assert finished[3] == {**figures(15.0), "accuracy/digits/clean": 97.0}
