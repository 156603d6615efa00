"""The record of a results folder grows with what was asked for."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from grids import table

from intnacl.errors import InputError
from intnacl.experiments import record
from intnacl.experiments.plan import make_plan
from intnacl.experiments.tables import Row


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


def test_an_edited_grid_mixes_no_runs_of_two_settings(tmp_path: Path) -> None:
    for temperature, seeds in ((0.2, [0, 1]), (0.3, [2])):
        settings = {"loss.temperature": temperature}
        row = Row(label="r", settings=settings)
        plan = make_plan([replace(table(name="a"), rows=(row,))], seeds)
        record.write(tmp_path, plan, scale="paper", overrides={})
    (cells,) = record.read(tmp_path)["tables"]["a"]["cells"]
    assert list(cells[0]) == ["2"]


def test_seeds_of_two_machines_add_up(tmp_path: Path) -> None:
    for seed, precision in enumerate(("fp32", "bf16")):
        plan = make_plan([table(name="a", **{"train.precision": precision})], [seed])
        record.write(tmp_path, plan, scale="paper", overrides={})
    (cells,) = record.read(tmp_path)["tables"]["a"]["cells"]
    assert list(cells[0]) == ["0", "1"]


def test_what_is_no_results_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it has no plan.json; `intnacl reproduce --out"):
        record.read(tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        record.read(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({"version": 7}))
    with pytest.raises(InputError, match="version 7"):
        record.read(tmp_path)
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(InputError, match="version None"):
        record.read(tmp_path)
    (tmp_path / "plan.json").write_bytes(b"\xff")
    with pytest.raises(InputError, match="is damaged"):
        record.read(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/out/plan.json could not be written: Not a directory"):
        record.write(tmp_path / "file" / "out", make_plan([table()], [0]), scale="paper", overrides={})
