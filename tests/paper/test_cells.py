"""Cells: means, spreads, differences, and the conditions for a published value."""

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from grids import table
from made_up import SCHEDULE, edit, fill, note_failure, paper_plan, result_of, shifted

from intnacl.cli.flags import pairs
from intnacl.paper import published
from intnacl.paper.attempts import finished, run_folder
from intnacl.paper.cells import Cell, FilledTable, command, figure, read_cells
from intnacl.paper.plan import make_plan
from intnacl.runs.config import differences
from intnacl.runs.resolve import resolve


def _cell(values: list[float], paper: published.Value | None) -> Cell:
    return Cell(runs={}, values={str(i): v for i, v in enumerate(values)}, dataset="d", published=paper)


def _only(results: Path) -> FilledTable:
    (filled,), _ = read_cells(results)
    return filled


def test_a_cell_by_hand():
    cell = _cell([50.0, 51.0, 52.0], published.Value(53.0, 0.5))
    assert (cell.mean, cell.sd, cell.n, cell.difference) == (51.0, 1.0, 3, -2.0)
    assert cell.units == pytest.approx(-2.0 / math.sqrt((2 * 1.0 + 4 * 0.25) / 6))
    assert _cell([50.0, 51.0, 52.0], published.Value(53.0, None)).units == -2.0  # by its own spread
    assert _cell([50.0], published.Value(53.0, 0.5)).units == -6.0  # by the paper's
    one = _cell([50.0], published.Value(53.0, None))
    assert (one.sd, one.difference, one.units) == (None, -3.0, None)
    assert _cell([], published.Value(53.0, 0.5)).difference is None
    assert _cell([50.0, 50.0], published.Value(53.0, 0.0)).units is None


def test_minutes_are_those_of_the_fastest_seed_with_the_device_to_itself(tmp_path):
    """Other work on a GPU makes a seed slower, which says nothing about the loss."""
    fill(tmp_path, paper_plan(("main",), [0, 1, 2]), shifted())
    edit(tmp_path, lambda result, _: result["time_s"].update(pretrain=1e6), "*seed1-*")
    clean, *_, minutes = _only(tmp_path).cells[0]
    assert (minutes.mean, minutes.sd, minutes.n) == (pytest.approx(1.4 * 100 / 60), None, 3)
    assert clean.sd is not None
    shared = {"gpu": "some GPU", "shared": True}
    edit(tmp_path, lambda result, _: result["protocol"].update(hardware=shared), "*seed0-*")
    clean, *_, minutes = _only(tmp_path).cells[0]
    assert (list(clean.values), list(minutes.values)) == (["0", "1", "2"], ["1", "2"])
    assert (minutes.status, minutes.runs["0"].machine) == ("partly", "some GPU, shared")
    assert replace(minutes, values={}).status == "shared"
    assert replace(clean, values={}).status == "missing"


def test_optional_columns_are_shown_once_measured(tmp_path):
    fill(tmp_path, paper_plan(("main", "figure1"), [0]), shifted())
    optional = "CIFAR-100 AutoAttack"
    main, figure1 = read_cells(tmp_path)[0]
    assert optional not in [column.label for column in main.columns]
    assert {len(row) for row in main.cells} == {len(main.columns)}
    found = {"dataset": "cifar100", "name": "autoattack", "eps": 0.002, "images": 50, "accuracy": 12.5}
    found |= SCHEDULE
    edit(tmp_path, lambda result, _: result["attacks"].append(found), main.cells[0][0].runs["0"].name)
    (main, _), _ = read_cells(tmp_path)
    place = [column.label for column in main.columns].index(optional)
    assert [row[place].mean for row in main.cells if row[place].values] == [12.5]
    record = json.loads((tmp_path / "plan.json").read_text())
    record["tables"]["figure1"]["columns"][1] |= {"optional": True, "metric": "autoattack"}  # a scatter's
    (tmp_path / "plan.json").write_text(json.dumps(record))
    assert len(read_cells(tmp_path)[0][1].columns) == len(figure1.columns)


def test_results_are_compared_with_their_published_values(tmp_path):
    fill(tmp_path, paper_plan(("2", "4"), [0, 1]), shifted(-1.0, spread=0.0))
    tables, runs = read_cells(tmp_path)
    assert [filled.departures for filled in tables] == [[], []]
    cells = [cell for filled in tables for row in filled.cells for cell in row]
    assert len(cells) == 108
    assert {round(cell.difference or 0.0, 9) for cell in cells} == {-1.0}
    assert {run.status for run in runs.values()} == {"finished"}
    assert all("--out RUN" in run.command for run in runs.values()), "repeated beside the record, not over it"


def test_a_loss_has_the_same_seeds_in_every_table(tmp_path):
    """A finished run of another table counts here too, and an unfinished one is not missing here."""
    fill(tmp_path, paper_plan(("3",), [1]), shifted())
    more = paper_plan(("main",), [0, 1, 2])
    fill(tmp_path, more, shifted(), skip=lambda job: job.config.seed == 2 or finished(tmp_path, job.name))
    table3, main = read_cells(tmp_path)[0]
    intnacl = next(i for i, row in enumerate(table3.rows) if row.group == "MIXNCA(g2, λ = 0.5, α = 1)")
    here, there = table3.cells[intnacl + 4][0], main.cells[4][0]
    assert (main.rows[4].label, table3.rows[intnacl + 4].label) == ("IntNaCl", "M = 5")
    assert here.values == there.values
    assert list(here.values) == ["0", "1"]
    assert (here.status, there.status) == ("measured", "partly")
    assert list(table3.cells[intnacl + 1][0].values) == ["1"]  # M = 2 is in no other table


def test_missing_and_failed_cells_are_distinguished(tmp_path):
    plan = paper_plan(("figure1",), [0, 1])
    rows = [row[0] for row in plan.cells["figure1"]]
    absent = {rows[0][1], *rows[1].values(), *rows[2].values()}
    fill(tmp_path, plan, shifted(), skip=lambda job: job.name in absent)
    jobs = {job.name: job for job in plan.jobs}
    note_failure(tmp_path, jobs[rows[1][0]], "bad", "s")
    note_failure(tmp_path, jobs[rows[2][0]], "bad")  # it will be tried again
    (filled,), runs = read_cells(tmp_path)
    assert [row[0].status for row in filled.cells][:4] == ["partly", "failed", "missing", "measured"]
    assert filled.cells[0][0].n == 1
    assert filled.cells[0][0].published == (53.69, 0.25)
    assert runs[rows[1][0]].error == "bad"


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"accuracy": 1}'])
def test_a_damaged_result_counts_as_missing_and_seeds_are_in_order(tmp_path, damage):
    fill(tmp_path, plan := make_plan([table()], [10, 2, 0]), shifted())
    run_folder(tmp_path, plan.cells["small"][0][0][0]).result.write_text(damage)
    edit(tmp_path, lambda result, _: result["accuracy"]["digits"].update(clean=float("nan")), "*seed10-*")
    (filled,), runs = read_cells(tmp_path)
    assert {run.status for name, run in runs.items() if "seed0" in name} == {"missing"}
    cell = filled.cells[0][0]
    assert (list(cell.runs), list(cell.values), cell.status) == (["0", "2", "10"], ["2"], "partly")


@pytest.mark.parametrize(
    ("change", "departures", "choices"),
    [
        ({"train.lr": 1e-3}, ["train.lr = 0.001, not 0.0003"], ()),
        ({"augment.strength": 0.5}, [], ("augment.strength = 0.5",)),
    ],
)
def test_published_values_are_compared_with_other_choices_but_not_with_departures(
    tmp_path, change, departures, choices
):
    fill(tmp_path, paper_plan(("2",), [0], **change), shifted())
    (filled,), runs = read_cells(tmp_path)
    assert filled.departures == departures
    assert {tuple(run.choices) for run in runs.values()} == {choices}
    assert {cell.published is None for row in filled.cells for cell in row} == {bool(departures)}


def test_a_part_of_a_data_set_has_no_published_value(tmp_path):
    fill(tmp_path, plan := paper_plan(("4",), [0]), shifted())
    part = {"tinyimagenet": {"train": 10_000, "test": 1_000}}
    edit(tmp_path, lambda result, _: result["protocol"].update(images=part), plan.jobs[0].name)
    filled = _only(tmp_path)
    assert filled.departures == []  # the table's other cells are the paper's
    assert {cell.published is None for row in filled.cells for cell in row} == {True, False}


def test_figures_of_a_result():
    (job,) = make_plan([table(**{"evaluation.eps": (0.01, 0.02)})], [0]).jobs
    result = result_of(job, lambda job, dataset, metric: {"clean": 90.0, "fgsm": 60.0, "pgd": 50.0}[metric])
    result["accuracy"]["digits"]["pgd"] = None  # not measured under the protocol

    def value(metric: str, eps: float | None = None, dataset: str = "digits") -> float | None:
        return figure(result, dataset, metric, eps).value

    assert (value("clean"), value("fgsm")) == (90.0, 60.0)
    assert value("fgsm", 0.02) == pytest.approx(6.0)
    assert value("pgd") == pytest.approx(10.0)
    assert (value("fgsm", 0.5), value("autoattack"), value("clean", dataset="cifar10")) == (None, None, None)
    assert value("minutes") == pytest.approx(1.4 / 60)
    row = next(row for row in result["attacks"] if row["name"] == "pgd")
    for images in (8, 99_999, 16):  # further attacks, on fewer and on more images
        result["attacks"].insert(0, row | {"images": images, "accuracy": float(images)})
    assert figure(result, "digits", "pgd") == (99_999, 99_999)
    assert figure(None, "digits", "clean") == (None, None)


def test_the_command_of_a_run_only_sets_what_differs_from_the_recipe():
    found = command(resolve({"dataset": "cifar100", "train.epochs": 7}), Path("out"))
    assert found == "intnacl run --dataset cifar100 --out out --set train.epochs=7"
    words = shlex.split(command(resolve({"root": "/my data"}), Path("out")))
    assert words[words.index("--root") + 1] == "/my data"


@pytest.mark.parametrize("name", ["2", "3", "4", "supervised", "figure_eps"])
def test_the_command_of_a_run_gives_its_configuration(name):
    for job in paper_plan((name,), [3]).jobs:
        words = shlex.split(command(job.config, Path("a b")))
        assert words[:6] == ["intnacl", "run", "--dataset", job.config.dataset, "--out", "a b"]
        again = resolve({"dataset": words[3]} | pairs(tuple(words[7:])))
        assert [line for line in differences(again, job.config) if not line.startswith("recipe")] == []
