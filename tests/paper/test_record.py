"""The record of a results folder grows with every call."""

import json
import os
import re
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
from intnacl.paper.tables import Row, Table
from mistakes import must_refuse


def write(results: Path, grid: Table, seeds: list[int], **more: Any) -> None:
    overrides = more.get("overrides", {})
    plan = make_plan([grid], seeds, overrides=overrides)
    record.write(results, plan, **({"scale": "paper", "overrides": {}} | more))


def seeds_of(results: Path) -> list[list[list[str]]]:
    """Return the seeds of every cell of the only table."""
    (kept,) = record.read(results)["tables"].values()
    return [[list(cell) for cell in row] for row in kept["cells"]]


def seed_0(results: Path, plan: Plan) -> str:
    """Write the plan, and return the run of the first cell."""
    record.write(results, plan, scale="paper", overrides={})
    return record.read(results)["tables"]["a"]["cells"][0][0]["0"]


def test_tables_that_are_written_at_the_same_time_are_all_kept(tmp_path, monkeypatch):
    read = record.read

    def slow(results: Path) -> record.Record:
        found = read(results)
        time.sleep(0.1)  # long enough for the other thread to read the same record
        return found

    monkeypatch.setattr(record, "read", slow)
    write(tmp_path, table(name="a"), [0])
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: write(tmp_path, table(name=name), [0]), "bc"))
    assert set(read(tmp_path)["tables"]) == set("abc")


def test_tables_with_other_settings_are_added_whatever_the_order_of_settings(tmp_path):
    grid = replace(table(name="a"), rows=(Row(label="r"),))
    for scale in ("paper", "tiny"):
        write(tmp_path, grid, [0], scale=scale)
    settings = {"train.lr": 0.1, "loss.temperature": 0.2, "root": "/data"}
    for overrides in (settings, dict(reversed(settings.items())), {"recipe": "paper"}):
        write(tmp_path, grid, [0], overrides=overrides)
    names = ["a", "a tiny", "a loss.temperature=0.2 train.lr=0.1", "a recipe=paper"]
    assert list(record.read(tmp_path)["tables"]) == names


def changed(rows: tuple[Row, ...] | None = None, epochs: tuple[int, ...] = (1,), **settings: Any) -> Table:
    """Return a version of the table "a"."""
    grid = table(1, epochs, name="a", **settings)
    return replace(grid, rows=rows or grid.rows)


T = tuple(Row(label=f"t {i}", settings={"loss.temperature": 0.5 + i / 10}) for i in range(3))
RENAMED = Row(label="b", settings=T[0].settings)
HOTTER = Row(label="t 0", settings={"loss.temperature": 0.3})


@pytest.mark.parametrize(
    ("versions", "seeds"),
    [
        ([changed(T[:1]), changed(T[::-1]), changed(T[1::-1])], [["1", "2"], ["0", "1", "2"]]),
        ([changed(epochs=(2,)), changed(epochs=(1, 2)), changed((RENAMED,), (1, 2))],
         [["1", "2"], ["0", "1", "2"]]),
        ([changed(**{"train.precision": name}) for name in ("fp32", "bf16")], [["0", "1"]]),
        ([changed(T[:1]), changed((HOTTER,))], [["1"]]),
    ],
    ids=["rows come and go", "columns and labels", "two machines", "other settings"],
)  # fmt: skip
def test_an_edited_grid_only_keeps_the_seeds_of_equal_runs(tmp_path, versions, seeds):
    for seed, grid in enumerate(versions):
        write(tmp_path, grid, [seed])
    assert [cell for row in seeds_of(tmp_path) for cell in row] == seeds


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [("evaluation.attacks", "fgsm", "fgsm,pgd"), ("train.precision", "bf16", "fp32")],
    ids=["measures more", "another machine"],
)
def test_a_figure_stays_until_the_run_that_replaces_it_is_finished(tmp_path, key, before, after):
    """A user without a GPU who asks for a table must not lose results from a GPU."""
    old, new = (make_plan([table(name="a", **{key: value})], [0]) for value in (before, after))
    names = [plan.cells["a"][0][0][0] for plan in (old, new)]
    fill(tmp_path, old, shifted())
    assert seed_0(tmp_path, new) == names[0]
    fill(tmp_path, new, shifted())
    assert seed_0(tmp_path, new) == names[1]
    assert seed_0(tmp_path, old) == names[0]


@pytest.mark.parametrize("key", ["probe.epochs", "evaluation.images"])
def test_an_edited_measurement_leaves_no_old_figure(tmp_path, key):
    old, new = (make_plan([table(name="a", **{key: n})], [0]) for n in (3, 4))
    fill(tmp_path, old, shifted())
    assert seed_0(tmp_path, new) == new.cells["a"][0][0][0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("other", b"", r"it has no plan.json; `intnacl reproduce --out"),
        ("config.json", b"{}", r"it is a single run, whose page is .*/report\.html"),
        ("plan.json", b"{", "is damaged"),
        ("plan.json", b"\xff", "is damaged"),
        ("plan.json", json.dumps({"version": 7}).encode(), r"version 7.*choose another results folder"),
        ("plan.json", b"[]", "version None"),
    ],
)
def test_a_folder_that_is_not_a_results_folder_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    must_refuse(record.read, tmp_path, message)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/out/plan.json could not be written: a file is where"):
        write(tmp_path / "file" / "out", table(), [0])


def test_a_table_with_greek_letters_is_read_in_any_locale(tmp_path):
    write(tmp_path, table(name="λ"), [0])
    code = "import sys, pathlib; from intnacl.paper import record; "
    code += "print(ascii(list(record.read(pathlib.Path(sys.argv[1]))['tables'])))"
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-X", "utf8=0", "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=os.environ | locale, capture_output=True, text=True)
    assert done.stdout.strip() == r"['\u03bb']", done.stderr


@pytest.mark.parametrize("key", ["rows", "columns", "cells", "label", "metric", "figure", "jobs", "config"])
@pytest.mark.parametrize("flipped", ["", "x", None])
def test_a_record_with_a_flipped_key_or_value_is_named(tmp_path, key, flipped):
    write(tmp_path, table(2), [0])
    text = (tmp_path / "plan.json").read_text()
    found = re.search(rf'"{key}": ("[^"]*"|null|.)', text)
    assert found
    changed = f'"{key}": 7' if flipped is None else f'"{flipped}{key[1:]}": {found[1]}'
    if found[1] in "[{" and flipped is None:
        changed = f'"{key}": 7, "other": {found[1]}'
    (tmp_path / "plan.json").write_text(text.replace(found[0], changed, 1))
    must_refuse(record.read, tmp_path, r"plan\.json is damaged: .* To restore it, move it away")
