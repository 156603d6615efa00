"""A run is resumed stage by stage, stops on request, and checks before training that it can be measured."""

import json
import os
import shutil
import signal
from typing import Any

import pytest
from pieces import StopAfter

from intnacl.errors import InputError
from intnacl.evaluation import knn, robustness
from intnacl.runs.folder import RunFolder
from intnacl.runs.images import RunImages
from intnacl.runs.stages import check, run, train_and_measure
from intnacl.training.ranks import Ranks
from intnacl.training.stop import Stop
from mistakes import must_refuse
from tiny_run import (
    CPU,
    HERE,
    SETTINGS,
    config,
    forbid_evaluation,
    measured,
    trained,
    trained_original,
    write_images,
)


def test_a_stopped_measurement_is_resumed(tmp_path):
    folder, said = trained(tmp_path).folder, []
    assert train_and_measure(config(), folder, HERE, StopAfter(3), said.append) == "terminate"
    stages = ["probe digits", "knn digits", "fgsm, pgd digits at eps 0.02"]
    assert [text.split(":")[0] for text in said] == stages
    assert not folder.result.exists()
    first = {path.name: path.read_bytes() for path in folder.measurements.iterdir()}
    assert train_and_measure(config(), folder, HERE, Stop()) is None
    later = {path.name: path.read_bytes() for path in folder.measurements.iterdir()}
    assert (len(first), len(later)) == (4, 6)
    assert first.items() <= later.items()
    assert folder.page.exists()


@pytest.mark.parametrize(
    ("number", "reason", "within", "name", "said"),
    [
        (signal.SIGTERM, "terminate", knn, "score", ["probe digits"]),
        (signal.SIGINT, "interrupt", knn, "score", ["probe digits"]),
        # In the last stage as in any other.
        (signal.SIGTERM, "terminate", robustness, "verdicts", ["probe digits", "knn digits"]),
    ],
)
def test_a_signal_ends_a_measurement_at_once(
    number, reason, within, name, said, tmp_path,
    monkeypatch,
):  # fmt: skip
    run, real = trained(tmp_path, **{"evaluation.eps": (0.02,)}), getattr(within, name)

    def _interrupted(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), number)
        return real(*arguments, **options)

    monkeypatch.setattr(within, name, _interrupted)
    told: list[str] = []
    with Stop() as stop:
        assert train_and_measure(run.config, run.folder, HERE, stop, told.append) == reason
    assert [text.split(":")[0] for text in told] == said
    assert not run.folder.result.exists()
    monkeypatch.setattr(within, name, real)
    assert train_and_measure(run.config, run.folder, HERE, Stop()) is None


class Noted:
    """A tracker that records its calls."""

    def __init__(self):
        self.calls = []

    def begin(self, run):
        self.run = run
        self.calls.append(("begin", run.folder.name, run.id, sorted(run.epochs)))

    def epoch(self, epoch, figures):
        self.calls.append(("epoch", epoch))

    def result(self, figures):
        self.calls.append(("result", figures))

    def end(self):
        self.calls.append(("end",))


def test_a_tracker_follows_a_stopped_and_resumed_run_to_its_accuracies(tmp_path):
    noted, settings, out = Noted(), SETTINGS | {"train.save_steps": 1}, tmp_path / "mine"
    with pytest.raises(InputError, match="was stopped"):
        run(settings, preset="simclr", out=out, device="cpu", max_minutes=0, trackers=[noted], say=len)
    name = (out / "id").read_text()
    assert noted.calls == [("begin", "mine", name, []), ("end",)]
    assert noted.run.config["train.save_steps"] == 1
    for _ in range(2):  # the second time, all is done
        done = run(settings, preset="simclr", out=out, device="cpu", trackers=[noted], say=len)
        assert noted.calls[2:] == [
            *(("begin", "mine", name, []), ("epoch", 1), ("epoch", 2), ("end",)),
            ("begin", "mine", name, [1, 2]),
            ("result", {f"accuracy/digits/{k}": v for k, v in done.result["accuracy"]["digits"].items()}),
            ("end",),
        ]


def test_a_finished_run_is_not_changed_and_needs_no_images(tmp_path, monkeypatch):
    folder = measured(tmp_path).folder
    before = {path: path.stat().st_ino for path in folder.path.rglob("*")}  # a replaced file has another
    forbid_evaluation(monkeypatch)
    monkeypatch.setattr("intnacl.runs.images.load", None)
    assert train_and_measure(config(), folder, HERE, Stop()) is None
    assert {path: path.stat().st_ino for path in folder.path.rglob("*")} == before


def test_another_process_that_measures_is_not_disturbed(tmp_path):
    folder = trained(tmp_path).folder
    other = RunFolder(folder)
    told = r"another process is working in .*run: wait until it ends"
    with other.hold(), pytest.raises(InputError, match=told):
        train_and_measure(config(), folder, HERE, Stop())
    assert not folder.measurements.exists()


def test_a_run_stopped_in_training_is_not_measured_and_other_ranks_do_not_measure(tmp_path):
    begun, folder = RunFolder(tmp_path / "begun"), trained(tmp_path).folder
    assert train_and_measure(config(), begun, HERE, StopAfter(1)) == "terminate"
    assert train_and_measure(config(), folder, Ranks(1, 2, CPU), Stop()) is None
    assert not begun.measurements.exists()
    assert not folder.measurements.exists()


def test_transfer_sets_have_the_same_kinds_of_figures(tmp_path):
    name = write_images(tmp_path / "images")
    settings = config(**{"evaluation.transfer": (name,), "evaluation.eps": (0.02,), "root": str(tmp_path)})
    folder = RunFolder(tmp_path / "run")
    folder.begin(settings)
    shutil.copy(trained_original() / "encoder.safetensors", folder)
    assert train_and_measure(settings, folder, HERE, Stop()) is None
    accuracy = json.loads(folder.result.read_text())["accuracy"]
    assert list(accuracy) == ["digits", name]
    assert set(accuracy[name]) == {"clean", "fgsm", "pgd"}


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("eps", (0.02, 2.0), r"eps=2\.0 is out of range: give a radius in pixel values from 0 to 1"),
        ("eps", (float("nan"),), "eps=nan is out of range"),
        ("eps", (), r"evaluation\.eps is empty"),
        ("attacks", ("fgms",), "did you mean 'fgsm'"),
        ("images", 0, "images=0"),
        ("transfer", ("digit",), "did you mean 'digits'"),
        ("transfer", ("folder:nowhere",), "nowhere is not a folder"),
    ],
)
def test_mistakes_are_found_before_training(tmp_path, setting, value, message):
    with pytest.raises(InputError, match=message):
        train_and_measure(
            config(**{f"evaluation.{setting}": value}), RunFolder(tmp_path / "run"), HERE, Stop()
        )
    assert not (tmp_path / "run").exists()


def test_too_few_classes_for_autoattack_are_refused_before_training(tmp_path):
    name = write_images(tmp_path / "images", classes=("cat", "cow", "dog"))
    for where in ({"dataset": name}, {"evaluation.transfer": (name,)}):
        asked = config(root=str(tmp_path), **where, **{"evaluation.attacks": ("pgd", "autoattack")})
        must_refuse(check, asked, RunImages(asked), "needs at least 4 classes, not 3: use pgd")
