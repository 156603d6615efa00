"""Stored measurements: made once for the same settings and images, and again if anything differs."""

import json
import os
import platform
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
import torch

import intnacl
from intnacl.errors import InputWarning
from intnacl.runs.folder import RunFolder
from intnacl.runs.images import RunImages
from intnacl.runs.measurement import FORMATS, Figures, Measurement, environment, plain
from intnacl.runs.measurements import Measurements
from intnacl.runs.resolve import resolve

CPU = torch.device("cpu")


class Store:
    """Measurements of a made-up kNN accuracy that counts its evaluations."""

    def __init__(self, folder: Path) -> None:
        self.stored, self.calls = Measurements(RunFolder(folder), "abc", resolve()), 0
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


def test_a_measurement_is_made_once_for_the_same_settings(store):
    first = store.measure()
    assert store.measure() == first
    assert store.calls == 1
    assert first.figures == {"accuracy": 1.0}
    assert store.measure(k=2).figures == {"accuracy": 2.0}
    assert [one.figures["accuracy"] for one in store.stored.all("knn")] == [1.0, 2.0]
    other = Measurements(store.stored.folder, "another encoder", resolve())
    assert list(other.all("knn")) == []


@pytest.mark.parametrize(
    ("old", "new", "checksum"),
    [
        (".+", "", True), (".+", "{", True), (".+", "[]", True), (".+", '{"kind": "knn"}', True),
        ("1.0", "99.0", True), ("1.0", "-1.0", False), ("accuracy", "accurapy", False),
        ('"abc"', '"abd"', False), ('"knn"', '"kno"', False), ('"figures": {.*?}', '"figures": 5', False),
        ('"settings"', '"sittings"', False),
    ],
)  # fmt: skip
def test_a_damaged_file_is_measured_again_with_one_warning(store, old, new, checksum):
    """Without a checksum, as in earlier versions, damage is detected in settings or figures."""
    store.measure()
    text = store.path.read_text()
    if not checksum:
        text = json.dumps({key: value for key, value in json.loads(text).items() if key != "checksum"})
    damaged = re.sub(old, new, text, count=1, flags=re.DOTALL)
    assert damaged != text
    store.path.write_text(damaged)
    with pytest.warns(InputWarning, match="is damaged: it is ignored and measured again"):
        assert list(store.stored.all("knn")) == []
    assert store.measure().figures == {"accuracy": 2.0}  # another warning would be an error here


def test_two_processes_make_the_same_measurement_once(store, tmp_path):
    other, settings = Store(tmp_path), plain(store.stored.knn_settings("digits", 1))
    made = Measurement(
        kind="knn", settings=settings, figures={"accuracy": 7.0}, time_s=1.0, environment=environment(CPU)
    )
    waits = pytest.warns(InputWarning, match="another process is measuring the same")
    with waits, ThreadPoolExecutor() as pool:
        with store.stored.locked([store.path.stem]):
            waiting = pool.submit(other.measure)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.5)
            store.stored.save(made)
        assert waiting.result().figures == {"accuracy": 7.0}
    assert other.calls == 0


def test_files_of_earlier_versions_count_unless_their_evaluator_has_another_format(store, monkeypatch):
    """Such files have neither a format nor a checksum, and another name for the environment."""
    store.measure()
    content = json.loads(store.path.read_text())
    content["surroundings"] = content.pop("environment")
    del content["checksum"], content["format"]
    store.path.write_text(json.dumps(content))
    assert store.measure().environment == content["surroundings"]
    assert store.calls == 1
    monkeypatch.setitem(FORMATS, "knn", 2)
    assert store.measure().format == 2
    assert store.calls == 2
    assert len(list(store.stored.all("knn"))) == 1  # the old file is replaced


def test_a_measurement_that_fails_leaves_no_files(store, monkeypatch):
    monkeypatch.setattr(store, "_count", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.measure()
    assert list(store.stored.folder.measurements.iterdir()) == []


def test_the_environment_is_this_machine():
    found = environment(torch.device("cuda", 0) if torch.cuda.is_available() else CPU)
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["intnacl"] == intnacl.__version__
    assert found["hardware"]["cores"] == os.cpu_count()
    assert found["hardware"]["cpu"]
    assert abs((datetime.now(UTC).date() - date.fromisoformat(found["date"])).days) <= 1
    assert "gpu" not in environment(CPU)["hardware"]
    if torch.cuda.is_available():
        assert found["hardware"]["gpu"] == torch.cuda.get_device_name(0)
        assert found["versions"]["cuda"] == torch.version.cuda
