"""Stored measurements: made once for the same settings and images, and again where anything differs."""

import json
import os
import platform
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
import torch

import intnacl
from intnacl.errors import InputWarning
from intnacl.evaluation.probe import ProbeConfig
from intnacl.runs import measurements
from intnacl.runs.folder import RunFolder
from intnacl.runs.images import RunImages
from intnacl.runs.measurements import Figures, Measurement, Measurements, environment
from intnacl.runs.resolve import resolve

CPU = torch.device("cpu")


class Store:
    """Measurements of a made-up kNN accuracy, which counts how often it is measured."""

    def __init__(self, folder: Path) -> None:
        self.stored, self.calls = Measurements(RunFolder(folder), "abc", ProbeConfig()), 0
        self.images = RunImages(resolve())

    def measure(self, k: int = 1) -> Measurement:
        return self.stored.measure(
            "knn", self.stored.knn_settings("digits", k), self.images, CPU, self._count
        )

    def _count(self) -> Figures:
        self.calls += 1
        return {"accuracy": float(self.calls)}

    @property
    def path(self) -> Path:
        return self.stored.path("knn", self.stored.knn_settings("digits", 1))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_it_is_made_once_for_the_same_settings(store: Store) -> None:
    first = store.measure()
    assert store.measure() == first
    assert store.calls == 1
    assert first.figures == {"accuracy": 1.0}
    assert store.measure(k=2).figures == {"accuracy": 2.0}
    assert [one.figures["accuracy"] for one in store.stored.all("knn")] == [1.0, 2.0]
    other = Measurements(store.stored.folder, "another encoder", ProbeConfig())
    assert list(other.all("knn")) == []


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"kind": "knn"}'])
def test_a_damaged_file_is_measured_again(store: Store, damage: str) -> None:
    store.measure()
    store.path.write_text(damage)
    assert list(store.stored.all("knn")) == []
    assert store.measure().figures == {"accuracy": 2.0}


def test_an_edited_file_is_measured_again_with_one_warning(store: Store) -> None:
    store.measure()
    content = json.loads(store.path.read_text())
    store.path.write_text(json.dumps(content | {"figures": {"accuracy": 99.0}}))
    with pytest.warns(InputWarning, match="does not match its checksum"):
        assert list(store.stored.all("knn")) == []
    assert store.measure().figures == {"accuracy": 2.0}  # another warning would be an error here


def test_files_of_earlier_versions_are_taken_as_they_are(store: Store) -> None:
    """They have neither a format nor a checksum, and another name for the environment."""
    store.measure()
    content = json.loads(store.path.read_text())
    content["surroundings"] = content.pop("environment")
    del content["checksum"], content["format"]
    store.path.write_text(json.dumps(content))
    assert store.measure().environment == content["surroundings"]
    assert store.calls == 1


def test_another_format_of_its_evaluator_makes_it_stale(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.measure()
    monkeypatch.setitem(measurements.FORMATS, "knn", 2)
    assert store.measure().format == 2
    assert store.calls == 2
    assert len(list(store.stored.all("knn"))) == 1  # the old file is replaced


def test_work_that_fails_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_count", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.measure()
    assert not store.stored.folder.measurements.exists()


def test_the_environment_is_this_machine() -> None:
    found = environment(CPU)
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["intnacl"] == intnacl.__version__
    assert found["hardware"]["cores"] == os.cpu_count()
    assert found["hardware"]["cpu"]
    assert "gpu" not in found["hardware"]
    assert abs((datetime.now(UTC).date() - date.fromisoformat(found["date"])).days) <= 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_environment_names_the_gpu() -> None:
    found = environment(torch.device("cuda", 0))
    assert found["hardware"]["gpu"] == torch.cuda.get_device_name(0)
    assert found["versions"]["cuda"] == torch.version.cuda
