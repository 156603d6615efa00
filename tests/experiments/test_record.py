"""The record of a results folder grows with what was asked for."""

import json
from pathlib import Path

import pytest
from grids import table

from intnacl.errors import InputError
from intnacl.experiments import record
from intnacl.experiments.plan import make_plan


def test_seeds_and_tables_add_up(tmp_path: Path) -> None:
    for name, seeds in (("a", [0]), ("a", [1, 2]), ("b", [0])):
        record.write(tmp_path, make_plan([table(name=name)], seeds), scale="paper", overrides={})
    kept = record.read(tmp_path)
    assert list(kept["tables"]) == ["a", "b"]
    assert list(kept["tables"]["a"]["cells"][0][0]) == ["0", "1", "2"]
    assert len(kept["jobs"]) == 3


def test_other_settings_stand_beside(tmp_path: Path) -> None:
    for scale, overrides in (("paper", {}), ("tiny", {}), ("paper", {"train.lr": 0.1, "root": "/data"})):
        plan = make_plan([table(name="a")], [0], overrides=overrides)
        record.write(tmp_path, plan, scale=scale, overrides=overrides)
    assert list(record.read(tmp_path)["tables"]) == ["a", "a tiny", "a train.lr=0.1"]


def test_a_table_of_another_shape_replaces_the_old(tmp_path: Path) -> None:
    for rows in (2, 1):
        record.write(tmp_path, make_plan([table(rows, name="a")], [rows]), scale="paper", overrides={})
    (cells,) = record.read(tmp_path)["tables"]["a"]["cells"]
    assert list(cells[0]) == ["1"]


def test_what_is_no_results_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it has no plan.json; `intnacl reproduce --out"):
        record.read(tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        record.read(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({"version": 7}))
    with pytest.raises(InputError, match="version 7"):
        record.read(tmp_path)
