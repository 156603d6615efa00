"""The record of a results folder grows with what was asked for."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grids import table
from made_up import fill, shifted

from intnacl.errors import InputError
from intnacl.paper import record
from intnacl.paper.plan import Plan, make_plan
from intnacl.paper.tables import Row


def test_seeds_and_tables_add_up(tmp_path: Path) -> None:
    for name, seeds in (("a", [0]), ("a", [1, 2]), ("b", [0])):
        record.write(tmp_path, make_plan([table(name=name)], seeds), scale="paper", overrides={})
    kept = record.read(tmp_path)
    assert list(kept["tables"]) == ["a", "b"]
    assert list(kept["tables"]["a"]["cells"][0][0]) == ["0", "1", "2"]
    assert len(kept["jobs"]) == 3


def test_tables_that_are_written_at_the_same_time_are_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, plans = record.read, [make_plan([table(name=name)], [0]) for name in "abc"]

    def _slow(results: Path) -> dict[str, Any]:
        found = read(results)
        time.sleep(0.1)  # long enough for the other to read the same
        return found

    monkeypatch.setattr(record, "read", _slow)
    record.write(tmp_path, plans[0], scale="paper", overrides={})
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda plan: record.write(tmp_path, plan, scale="paper", overrides={}), plans[1:]))
    assert set(read(tmp_path)["tables"]) == set("abc")


def test_other_settings_stand_beside(tmp_path: Path) -> None:
    others = ({"train.lr": 0.1, "root": "/data"}, {"recipe": "paper"})
    for scale, overrides in (("paper", {}), ("tiny", {}), *(("paper", other) for other in others)):
        plan = make_plan([table(name="a")], [0], overrides=overrides)
        record.write(tmp_path, plan, scale=scale, overrides=overrides)
    assert list(record.read(tmp_path)["tables"]) == ["a", "a tiny", "a train.lr=0.1", "a recipe=paper"]


def test_the_order_of_settings_makes_no_other_table(tmp_path: Path) -> None:
    settings = {"train.lr": 0.1, "loss.temperature": 0.2}
    for seed, overrides in enumerate((settings, dict(reversed(settings.items())))):
        plan = make_plan([replace(table(name="a"), rows=(Row(label="r"),))], [seed], overrides=overrides)
        record.write(tmp_path, plan, scale="paper", overrides=overrides)
    (only,) = record.read(tmp_path)["tables"].values()
    assert list(only["cells"][0][0]) == ["0", "1"]


def test_rows_that_come_and_go_leave_the_others_their_seeds(tmp_path: Path) -> None:
    for seed, rows in enumerate((1, 3, 2)):
        grid = table(rows, name="a")
        turned = replace(grid, rows=grid.rows[::-1])
        record.write(tmp_path, make_plan([turned], [seed]), scale="paper", overrides={})
    cells = record.read(tmp_path)["tables"]["a"]["cells"]
    assert [list(cell) for (cell,) in cells] == [["1", "2"], ["0", "1", "2"]]


def test_a_new_column_leaves_the_others_their_seeds(tmp_path: Path) -> None:
    for seed, epochs in enumerate(((2,), (1, 2))):
        record.write(tmp_path, make_plan([table(1, epochs, name="a")], [seed]), scale="paper", overrides={})
    ((one, two),) = record.read(tmp_path)["tables"]["a"]["cells"]
    assert [list(one), list(two)] == [["1"], ["0", "1"]]


def test_a_new_name_leaves_a_row_its_seeds(tmp_path: Path) -> None:
    for seed, label in enumerate("ab"):
        grid = table(name="a")
        named = replace(grid, rows=(replace(grid.rows[0], label=label),))
        record.write(tmp_path, make_plan([named], [seed]), scale="paper", overrides={})
    ((cell,),) = record.read(tmp_path)["tables"]["a"]["cells"]
    assert list(cell) == ["0", "1"]


def test_a_figure_stays_until_the_run_that_measures_more_is_done(tmp_path: Path) -> None:
    old, new = (make_plan([table(name="a", **{"evaluation.attacks": a})], [0]) for a in ("fgsm", "fgsm,pgd"))
    fill(tmp_path, old, shifted())
    assert seed_0(tmp_path, new) == old.cells["a"][0][0][0]
    fill(tmp_path, new, shifted())
    assert seed_0(tmp_path, new) == new.cells["a"][0][0][0]


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


def test_a_figure_stays_until_another_machine_has_its_own(tmp_path: Path) -> None:
    """Somebody without a GPU who asks for a table of a GPU's results must not lose them."""
    gpu, cpu = (make_plan([table(name="a", **{"train.precision": p})], [0]) for p in ("bf16", "fp32"))
    names = [plan.cells["a"][0][0][0] for plan in (gpu, cpu)]
    fill(tmp_path, gpu, shifted())
    assert seed_0(tmp_path, cpu) == names[0]
    fill(tmp_path, cpu, shifted())
    assert seed_0(tmp_path, cpu) == names[1]
    assert seed_0(tmp_path, gpu) == names[0]


@pytest.mark.parametrize("key", ["probe.epochs", "evaluation.images"])
def test_an_edited_measurement_leaves_no_old_figure(tmp_path: Path, key: str) -> None:
    old, new = (make_plan([table(name="a", **{key: n})], [0]) for n in (3, 4))
    fill(tmp_path, old, shifted())
    assert seed_0(tmp_path, new) == new.cells["a"][0][0][0]


def seed_0(results: Path, plan: Plan) -> str:
    """The run of the first cell once the plan is written."""
    record.write(results, plan, scale="paper", overrides={})
    return str(record.read(results)["tables"]["a"]["cells"][0][0]["0"])


def test_what_is_no_results_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it has no plan.json; `intnacl reproduce --out"):
        record.read(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"it is one run, whose own page is .*run/report\.html"):
        record.read(tmp_path / "run")
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        record.read(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({"version": 7}))
    with pytest.raises(InputError, match=r"version 7.*take another results folder"):
        record.read(tmp_path)
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(InputError, match="version None"):
        record.read(tmp_path)
    (tmp_path / "plan.json").write_bytes(b"\xff")
    with pytest.raises(InputError, match="is damaged"):
        record.read(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/out/plan.json could not be written: a file stands"):
        record.write(tmp_path / "file" / "out", make_plan([table()], [0]), scale="paper", overrides={})


def test_a_table_with_greek_letters_is_read_in_any_locale(tmp_path: Path) -> None:
    record.write(tmp_path, make_plan([table(name="λ")], [0]), scale="paper", overrides={})
    code = "import sys, pathlib; from intnacl.paper import record; "
    code += "print(ascii(list(record.read(pathlib.Path(sys.argv[1]))['tables'])))"
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-X", "utf8=0", "-c", code, str(tmp_path)]
    told = subprocess.run(command, env=os.environ | locale, capture_output=True, text=True)
    assert told.stdout.strip() == r"['\u03bb']", told.stderr
