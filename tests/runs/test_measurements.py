"""Parts: done once for the same settings, done again when settings change or the file is damaged."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from intnacl.runs.folder import RunFolder
from intnacl.runs.measurements import all_parts, measured, part_path

CPU = torch.device("cpu")
SETTINGS = {"dataset": "digits", "encoder": "abc", "k": (1, 2)}


class Work:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, Any]:
        self.calls += 1
        return {"accuracy": self.calls}


def test_a_part_is_measured_once_for_the_same_settings(tmp_path: Path) -> None:
    work = Work()
    first = measured(RunFolder(tmp_path), "knn", SETTINGS, CPU, work)
    again = measured(RunFolder(tmp_path), "knn", SETTINGS, CPU, work)
    assert work.calls == 1
    assert again == first
    assert first.figures == {"accuracy": 1}
    assert first.settings["k"] == [1, 2]  # as it comes back from the file
    assert first.surroundings["versions"]["torch"] == torch.__version__


def test_other_settings_are_another_part_and_overwrite_nothing(tmp_path: Path) -> None:
    work = Work()
    measured(RunFolder(tmp_path), "knn", SETTINGS, CPU, work)
    other = measured(RunFolder(tmp_path), "knn", SETTINGS | {"encoder": "def"}, CPU, work)
    assert work.calls == 2
    assert other.figures == {"accuracy": 2}
    assert [part.figures["accuracy"] for part in all_parts(RunFolder(tmp_path), "knn")] == [1, 2]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"kind": "knn"}'])
def test_a_damaged_part_is_measured_again(tmp_path: Path, damage: str) -> None:
    work = Work()
    measured(RunFolder(tmp_path), "knn", SETTINGS, CPU, work)
    path = part_path(RunFolder(tmp_path), "knn", json.loads(json.dumps(SETTINGS)))
    path.write_text(damage)
    assert list(all_parts(RunFolder(tmp_path), "knn")) == []
    assert measured(RunFolder(tmp_path), "knn", SETTINGS, CPU, work).figures == {"accuracy": 2}
    assert [part.figures["accuracy"] for part in all_parts(RunFolder(tmp_path), "knn")] == [2]


def test_work_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def _fail() -> dict[str, Any]:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        measured(RunFolder(tmp_path), "knn", SETTINGS, CPU, _fail)
    assert list(tmp_path.rglob("*.json")) == []


def test_again_measures_what_is_there(tmp_path: Path) -> None:
    work = Work()
    measured(RunFolder(tmp_path), "knn", SETTINGS, CPU, work)
    assert measured(RunFolder(tmp_path), "knn", SETTINGS, CPU, work, again=True).figures == {"accuracy": 2}
