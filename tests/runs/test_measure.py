"""A run goes on stage by stage, stops when told to, and refuses before training what it could not measure."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intnacl.attacks.named import Attack
from intnacl.errors import InputError, InputWarning
from intnacl.evaluation import knn
from intnacl.runs import measure as pipeline
from intnacl.runs import run
from intnacl.runs.folder import RunFolder
from intnacl.runs.measurements import Part
from intnacl.runs.opened import Subject
from intnacl.training.stop import Stop
from tiny_run import CPU, HERE, config, measured, trained, write_images


class StopAfter(Stop):
    """Stops when it has been asked so often."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    def due(self) -> bool:
        self.looks -= 1
        if self.looks < 0:
            self.reason = "terminate"
        return self.reason is not None


def test_a_stopped_measurement_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = trained(tmp_path).folder
    said: list[str] = []
    assert run(config(), folder, HERE, StopAfter(3), said.append) == "terminate"
    assert [text.split(":")[0] for text in said] == [
        "probe digits",
        "knn digits",
        "fgsm, pgd digits at eps 0.02",
    ]
    assert not (folder / "result.json").exists()
    first = {path.name: path.read_bytes() for path in (folder / "parts").iterdir()}
    assert len(first) == 3
    assert run(config(), folder, HERE, Stop()) is None
    later = {path.name: path.read_bytes() for path in (folder / "parts").iterdir()}
    assert len(later) == 4
    assert first.items() <= later.items()
    assert (folder / "report.html").exists()


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, "terminate"), (signal.SIGINT, "interrupt")])
def test_a_signal_ends_a_measurement_at_once(
    number: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, score = trained(tmp_path).folder, knn.score

    def _interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), number)
        return score(*arguments)

    monkeypatch.setattr(knn, "score", _interrupted)
    said: list[str] = []
    with Stop() as stop:
        assert run(config(), folder, HERE, stop, said.append) == reason
    assert [text.split(":")[0] for text in said] == ["probe digits"]
    assert [path.name.split("-")[0] for path in (folder / "parts").iterdir()] == ["probe"]
    monkeypatch.setattr(knn, "score", score)
    assert run(config(), folder, HERE, Stop()) is None


def test_a_signal_in_the_last_stage_is_a_stop_as_in_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, attack = trained(tmp_path).folder, pipeline.run_attacks

    def _interrupted(subject: Subject, name: str, attacks: tuple[Attack, ...]) -> Part:
        if attacks[0].eps == config().evaluation.eps[-1]:
            os.kill(os.getpid(), signal.SIGTERM)
        return attack(subject, name, attacks)

    monkeypatch.setattr(pipeline, "run_attacks", _interrupted)
    with Stop() as stop:
        assert run(config(), folder, HERE, stop) == "terminate"
    assert not (folder / "result.json").exists()


def test_a_finished_run_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trained(tmp_path).folder
    run(config(), folder, HERE, Stop())
    before = {path: path.stat().st_ino for path in folder.path.rglob("*")}  # a replaced file has another
    for name in ("runs.probes.probe.fit", "runs.probes.knn.score"):
        monkeypatch.setattr(f"intnacl.{name}", None)
    monkeypatch.setattr("intnacl.runs.attack.robustness.verdicts", None)
    assert run(config(), folder, HERE, Stop()) is None
    assert {path: path.stat().st_ino for path in folder.path.rglob("*")} == before


def test_a_finished_run_does_not_need_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = measured(tmp_path).folder

    def _gone(*_: Any, **__: Any) -> None:
        raise InputError("no such data set")

    monkeypatch.setattr("intnacl.runs.opened.load", _gone)
    assert run(config(), folder, HERE, Stop()) is None


def test_a_run_stopped_in_training_is_not_measured(tmp_path: Path) -> None:
    assert run(config(), RunFolder(tmp_path / "run"), HERE, StopAfter(1)) == "terminate"
    assert not (tmp_path / "run" / "parts").exists()


def test_transfer_sets_get_the_same_figures(tmp_path: Path) -> None:
    import shutil

    name = write_images(tmp_path / "images")
    settings = config(**{"evaluation.transfer": (name,), "evaluation.eps": (0.02,), "root": str(tmp_path)})
    folder = RunFolder(tmp_path / "run")
    from tiny_run import trained_original

    folder.begin(settings)
    shutil.copy(trained_original() / "encoder.safetensors", folder)
    assert run(settings, folder, HERE, Stop()) is None
    accuracy = json.loads((folder / "result.json").read_text())["accuracy"]
    assert list(accuracy) == ["digits", name]
    assert set(accuracy[name]) == {"clean", "fgsm", "pgd"}


def test_the_supervised_baseline_is_measured_alike(tmp_path: Path) -> None:
    settings = config(objective="supervised", **{"train.epochs": 1, "evaluation.eps": (0.02,)})
    assert run(settings, RunFolder(tmp_path / "run"), HERE, Stop()) is None
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["protocol"]["objective"] == "supervised"
    assert result["accuracy"]["digits"]["clean"] > 50
    assert "supervised on digits" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluation.eps": (0.02, 2.0)}, r"eps=2\.0 is out of range"),
        ({"evaluation.eps": ()}, r"evaluation\.eps is empty"),
        ({"evaluation.attacks": ("fgms",)}, "did you mean 'fgsm'"),
        ({"evaluation.images": 0}, "images=0"),
        ({"evaluation.transfer": ("digit",)}, "did you mean 'digits'"),
    ],
)
def test_mistakes_are_found_before_training(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(config(**changes), RunFolder(tmp_path / "run"), HERE, Stop())
    assert not (tmp_path / "run").exists()


def test_images_of_another_size_are_refused_before_training(tmp_path: Path) -> None:
    images, labels = np.zeros((4, 16, 16, 3), np.uint8), np.arange(4)
    for split in ("train", "test"):
        np.savez(tmp_path / f"{split}.npz", images=images, labels=labels)
    settings = config(**{"evaluation.transfer": (f"npz:{tmp_path}",)})
    with pytest.raises(InputError, match="has 16×16 train images, but the encoder is trained on 8×8"):
        run(settings, RunFolder(tmp_path / "run"), HERE, Stop())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ((8, 8), (12, 12), "has 12×12 test images, but the encoder is trained on 8×8"),
        ((8, 10), (8, 10), "has 8×10 images, but encoders are for square ones"),
    ],
)
def test_arrays_of_other_shapes_are_refused_before_training(
    tmp_path: Path, train: tuple[int, int], test: tuple[int, int], message: str
) -> None:
    name = write_arrays(tmp_path / "own.npz", train=train, test=test)
    with pytest.raises(InputError, match=message):
        run(config(dataset=name), RunFolder(tmp_path / "run"), HERE, Stop())
    assert not (tmp_path / "run").exists()


def test_classes_with_images_in_one_split_alone_are_told_before_training(tmp_path: Path) -> None:
    name = write_arrays(tmp_path / "own.npz", test_classes=7)
    with pytest.warns(InputWarning, match=r"3 of its classes have test images but no .* \(4, 5, 6\)"):
        pipeline.check(config(dataset=name))
    name = write_arrays(tmp_path / "few.npz", test_classes=3)
    with pytest.warns(InputWarning, match=r"1 of its classes have training images but no .* \(3\)"):
        pipeline.check(config(dataset=name))
    pipeline.check(config(dataset=write_arrays(tmp_path / "all.npz")))  # warnings are errors here


def write_arrays(
    path: Path, *, train: tuple[int, int] = (8, 8), test: tuple[int, int] = (8, 8), test_classes: int = 4
) -> str:
    """An `npz:` data set of black images, with 4 classes for training; its name."""
    np.savez(
        path, train_images=np.zeros((16, *train, 3), np.uint8), train_labels=np.arange(16) % 4,
        test_images=np.zeros((16, *test, 3), np.uint8), test_labels=np.arange(16) % test_classes,
    )  # fmt: skip
    return f"npz:{path}"


def test_unlabelled_images_are_refused_before_training(tmp_path: Path) -> None:
    name = write_images(tmp_path / "images", classes=())
    with pytest.raises(InputError, match="has no labels"):
        run(config(dataset=name, root=str(tmp_path)), RunFolder(tmp_path / "run"), HERE, Stop())
    assert not (tmp_path / "run").exists()


def test_a_missing_autoattack_is_told_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(InputError, match=r"pip install 'intnacl\[autoattack\]'"):
        pipeline.check(config(**{"evaluation.attacks": ("fgsm", "autoattack")}))


@pytest.mark.parametrize("own", [True, False])
def test_too_few_classes_for_autoattack_are_told_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    monkeypatch.setattr(pipeline, "require_autoattack", lambda: None)
    name = write_images(tmp_path / "images", classes=("cat", "cow", "dog"))
    where = {"dataset": name} if own else {"evaluation.transfer": (name,)}
    with pytest.raises(InputError, match="needs at least 4 classes, these are 3: use pgd"):
        pipeline.check(config(**where, root=str(tmp_path), **{"evaluation.attacks": ("pgd", "autoattack")}))


def test_ranks_other_than_the_main_one_do_not_measure(tmp_path: Path) -> None:
    from intnacl.training.ranks import Ranks

    folder = trained(tmp_path).folder
    assert run(config(), folder, Ranks(1, 2, CPU), Stop()) is None
    assert not (folder / "parts").exists()
