"""`reproduce` and `report` from end to end."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grids import grid_file, jobs
from made_up import fill, note_failure, shifted

from intnacl.cli import app
from intnacl.paper import record
from intnacl.paper.plan import Plan, make_plan
from intnacl.paper.reproduce import Selection, print_plan, print_summary, reproduce, seeds_of
from intnacl.paper.session import new_session
from intnacl.paper.tables import read_grid
from intnacl.training.stop import Stop
from mistakes import must_refuse, refused

Output = pytest.CaptureFixture[str]
HERE = ("--workers", "0", "--device", "cpu")


def intnacl(*words: str) -> int:
    """Run a command line in this process, and return its exit code."""
    try:
        app(list(words), result_action="return_value")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def listed(capsys: Output, *words: str) -> str:
    """Return the output of `reproduce --list`."""
    intnacl("reproduce", "--list", *words)
    return capsys.readouterr().out


def planned(capsys: Output, *words: str) -> list[dict[str, Any]]:
    """Return the lines of a dry run."""
    assert intnacl("reproduce", "--dry-run", *words) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def selected(out: Path, **more: Any) -> Selection:
    return Selection(**{"overrides": {}, "out": out, "workers": 0, "device": "cpu"} | more)


def rows_of(results: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((results / "report" / "results.csv").read_text())))


def elsewhere(grid: Path) -> Plan:
    """Return the plan of a grid on a GPU."""
    return make_plan(read_grid(grid), [0], overrides={"train.precision": "bf16"})


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),
    [
        ((), ("table2", "nacl_pgd", "more_epochs", "figure_lambda", "765", "estimates", "H200"), "M = 2"),
        (("--table", "main", "2"), ("IntNaCl", "MIXNCA(g2, λ = 0.5), M = 2"), "table3"),
        (("--row", "NCA(g2, 5)"), ("main_beside", "figure_eps"), "table2"),
    ],
    ids=["all runs of five seeds", "rows of tables", "tables of a row"],
)
def test_the_list_has_counts_estimates_and_names(capsys, tmp_path, words, shown, hidden):
    text = listed(capsys, *words, "--out", str(tmp_path))
    assert all(found in text for found in shown)
    assert hidden not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--table", "main", "--row", "Adv"), r"row='Adv' is unknown.*IntNaCl"),
        (("--table", "main", "--column", "100 epochs"),
         r"column='100 epochs' is unknown.*minutes of training"),
        (("--table", "main", "more_epochs", "--row", "IntNaCl", "--column", "100 epochs"),
         "no table has both rows IntNaCl and columns 100 epochs"),
    ],
)  # fmt: skip
def test_the_list_only_accepts_rows_and_columns_of_its_tables(words, message, tmp_path):
    must_refuse(intnacl, "reproduce", "--list", *words, "--out", str(tmp_path), message)


def test_selected_columns_are_counted_with_the_cost_of_their_training(capsys, tmp_path):
    """Without the milestones before it, a run of 2000 epochs costs all of its epochs."""

    def total(*words: str) -> list[str]:
        text = listed(
            capsys, "--table", "more_epochs", "--seeds", "0", "--out", str(tmp_path / "out"), *words
        )
        (line,) = (line for line in text.splitlines() if "counting shared runs once" in line)
        return line.split()[-3:]

    assert total("--column", "100 epochs", "200 epochs")[0] == "12"  # six losses, two lengths
    every, last = (float(total("--row", "SimCLR", *words)[2]) for words in ((), ("--column", "2000 epochs")))
    assert last > 0.6 * every > 0


def test_the_list_mentions_runs_of_other_devices_but_not_of_other_tables(capsys, tmp_path):
    grid = grid_file(tmp_path / "grid.toml")
    fill(tmp_path, elsewhere(grid), shifted())
    text = listed(capsys, "--config", str(grid), "--out", str(tmp_path), "--device", "cpu")
    assert "4 more finished runs" in text
    selection = selected(tmp_path / "paper", tables=("main",))
    fill(selection.out, selection.plan(selection.chosen()), shifted())
    text = listed(
        capsys, "--table", "weights", "--seeds", "0", "--device", "cpu", "--out", str(selection.out)
    )
    assert "more finished runs" not in text


def test_a_dry_run_prints_configurations_and_writes_nothing(capsys, tmp_path):
    lines = planned(capsys, "--table", "2", "--seeds", "7", "--out", str(tmp_path / "out"))
    assert len(lines) == 18
    assert {line["config"]["seed"] for line in lines} == {7}
    lines = planned(capsys, "--table", "main", "--row", "SimCLR", "IntCl", "--trials", "2")
    assert sorted(line["config"]["loss"]["alpha"] for line in lines) == [0, 0, 1, 1]
    milestones = ("--column", "100 epochs", "200 epochs")
    first, second = planned(capsys, "--table", "more_epochs", "--row", "SimCLR", *milestones, "--seeds", "0")
    assert [line["config"]["train"]["epochs"] for line in (first, second)] == [100, 200]
    assert second["goes_on_from"] == first["run"]
    assert not (tmp_path / "out").exists()


def test_a_users_grid_from_end_to_end(capsys, tmp_path):
    grid, out = grid_file(tmp_path / "grid.toml", label="x|<b>"), tmp_path / "out"
    words = ("reproduce", "--config", str(grid), "--trials", "1", "--out", str(out), *HERE)
    assert intnacl(*words) == 0
    assert "4 of 4 runs are finished" in capsys.readouterr().out
    assert intnacl(*words) == 0  # nothing is left to do
    intnacl("report", str(out))
    rows = rows_of(out)
    assert [row["row"] for row in rows] == ["SimCLR", "SimCLR", "x|<b>", "x|<b>"]
    assert all(0 < float(row["value"]) <= 100 for row in rows)
    assert (out / "report" / "mine-grid.svg").exists()


def test_failures_end_in_a_list_and_exit_code_1(capsys, tmp_path):
    words = ("reproduce", "--table", "figure1", "--seeds", "0", *HERE)
    code = intnacl(*words, "--out", str(tmp_path / "out"), "--root", str(tmp_path / "nowhere"))
    text = capsys.readouterr().out
    assert code == 1
    assert "0 of 7 runs are finished" in text
    assert text.count("failed: ") == 1, "one reason"
    assert re.search(r"failed: cifar100-\S+ and 6 more: .*nowhere", text)
    assert "7 failed; their output" in text


@pytest.mark.parametrize(("name", "key"), [("grid", "mine grid"), ("paper", "mine paper.toml")])
def test_a_users_grid_is_marked_and_a_time_limit_says_how_to_resume(capsys, tmp_path, name, key):
    words = ("--config", str(grid_file(tmp_path / f"{name}.toml")), *HERE, "--max-minutes", "0")
    assert intnacl("reproduce", *words, "--out", str(tmp_path / "out")) == 0
    assert "stopped (time); the same command resumes." in capsys.readouterr().out
    assert list(record.read(tmp_path / "out")["tables"]) == [key]


def test_seeds_are_named_or_counted():
    assert seeds_of(3, ()) == (0, 1, 2)
    assert seeds_of(None, ()) == (0, 1, 2, 3, 4)
    assert seeds_of(None, (4, 2, 4)) == (4, 2)
    must_refuse(seeds_of, 5, (4, 2), "--trials 5 and --seeds exclude each other")
    for trials in (0, -1, 1001, 2**64):
        must_refuse(seeds_of, trials, (), f"trials={trials} must be a whole number from 1 to 1,000")


@pytest.mark.parametrize(
    ("setting", "value", "label"),
    [("train.epochs", "3", "1 epoch"), ("loss.negatives", "g2", "Debiased")],
    ids=["column", "row"],
)
def test_overrides_that_contradict_labels_are_refused(tmp_path, setting, value, label):
    grid, out = grid_file(tmp_path / "grid.toml"), tmp_path / "out"
    selection = selected(out, grid=grid, overrides={setting: value}, max_minutes=0)
    for command in (print_plan, reproduce):
        must_refuse(command, selection, rf"--set {setting}: .*'mine'.* '{label}'")
    assert not out.exists()


def test_the_supervised_baseline_can_be_shorter_than_in_the_paper(capsys):
    for more, epochs in (((), 1000), (("--set", "train.epochs=300"), 300)):
        lines = planned(capsys, "--table", "supervised", "--seeds", "0", *more)
        assert [line["config"]["train"]["epochs"] for line in lines] == [epochs] * 2
        assert [line["config"]["objective"] for line in lines] == ["supervised"] * 2


@pytest.mark.parametrize(("reason", "told"), [(None, "its workers died"), ("time", "time")])
def test_remaining_runs_fail_the_command_unless_it_was_stopped(capsys, tmp_path, reason, told):
    """A run that an earlier session gave up is not a failure of this one."""
    (job,) = jobs()
    note_failure(tmp_path, job, "no data", "earlier")
    stop = Stop()
    stop.reason = reason
    assert print_summary(new_session(tmp_path, (job,), None), stop) == (reason is None)
    assert f"stopped ({told}); the same command resumes." in capsys.readouterr().out


test_no_tables_and_tables_together_with_all_are_refused = refused(
    lambda asked: selected(Path("none"), **asked).chosen(),
    ({}, "give a --table or --all"),
    ({"tables": ("2", "figure1"), "everything": True}, "--table 2 figure1 and --all exclude each other"),
)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_paper_at_tiny_scale(tmp_path):
    words = ("reproduce", "--all", "--scale", "tiny", "--trials", "1", "--device", "cpu", "--workers", "2")
    command = [sys.executable, "-m", "intnacl", *words, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    intnacl("report", str(tmp_path))
    rows = rows_of(tmp_path)
    assert all(row["status"] == "finished" for row in rows)
    empty = {row["metric"] for row in rows if not row["value"]}
    assert empty == {"minutes"}  # two workers shared the CPU
    assert "autoattack" not in {row["metric"] for row in rows}  # it is optional and was not run
    assert {row["published_mean"] for row in rows} == {""}
