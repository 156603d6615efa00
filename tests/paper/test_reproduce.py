"""The commands from end to end."""

import csv
import io
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from grids import grid_file, jobs
from made_up import fill, shifted

from intnacl.cli import app
from intnacl.errors import InputError
from intnacl.paper import record
from intnacl.paper.attempts import run_folder
from intnacl.paper.plan import Plan, make_plan
from intnacl.paper.reproduce import Selection, print_plan, print_summary, reproduce, seeds_of
from intnacl.paper.tables import read_grid
from intnacl.paper.workers import new_session
from intnacl.training.stop import Stop

Output = pytest.CaptureFixture[str]


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def intnacl(*words: str) -> int:
    """The exit code of a command line, in this process."""
    try:
        app(list(words), result_action="return_value")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_list_has_counts_and_estimates(capsys: Output, tmp_path: Path) -> None:
    intnacl("reproduce", "--list", "--out", str(tmp_path))
    text = capsys.readouterr().out
    for name in (
        "table2",
        "table3",
        "table4",
        "nacl_pgd",
        "more_epochs",
        "supervised",
        "figure1",
        "figure_lambda",
    ):
        assert name in text
    assert "765" in text  # runs of five seeds, shared ones once
    assert "estimates" in text
    assert "H200" in text


def test_the_list_of_named_tables_has_the_rows_that_can_be_asked_for(capsys: Output, tmp_path: Path) -> None:
    intnacl("reproduce", "--list", "--table", "main", "2", "--seeds", "0", "--out", str(tmp_path))
    text = capsys.readouterr().out
    for row in ("IntNaCl", "MIXNCA(g2, λ = 0.5), M = 2"):
        assert row in text
        assert intnacl("reproduce", "--table", "main", "2", "--row", row, "--dry-run") == 0
    assert "table3" not in text


def test_the_list_of_named_rows_says_which_tables_have_them(capsys: Output, tmp_path: Path) -> None:
    intnacl("reproduce", "--list", "--row", "NCA(g2, 5)", "--seeds", "0", "--out", str(tmp_path))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "NCA(" in line]
    assert [line[0] for line in lines] == ["main_beside", "figure_eps"]
    with pytest.raises(InputError, match=r"row='NCA\(g5\)' is unknown"):
        intnacl("reproduce", "--list", "--row", "NCA(g5)", "--out", str(tmp_path))


def test_the_list_of_a_table_knows_its_own_rows_and_columns_alone(tmp_path: Path) -> None:
    words = ("reproduce", "--list", "--out", str(tmp_path), "--table", "main")
    with pytest.raises(InputError, match=r"row='Adv' is unknown.*IntNaCl"):
        intnacl(*words, "--row", "Adv")
    with pytest.raises(InputError, match=r"column='100 epochs' is unknown.*minutes of training"):
        intnacl(*words, "--column", "100 epochs")
    with pytest.raises(InputError, match="no table has both rows IntNaCl and columns 100 epochs"):
        intnacl(*words, "more_epochs", "--row", "IntNaCl", "--column", "100 epochs")


def test_the_list_of_named_columns_counts_their_runs_alone(capsys: Output, tmp_path: Path) -> None:
    words = ("--table", "more_epochs", "--column", "100 epochs", "200 epochs", "--seeds", "0")
    intnacl("reproduce", "--list", *words, "--out", str(tmp_path))
    (last,) = (line.split() for line in capsys.readouterr().out.splitlines() if "shared runs once" in line)
    assert last[-3] == "12"  # six losses, two lengths


def test_the_list_tells_of_runs_made_elsewhere(capsys: Output, tmp_path: Path) -> None:
    grid = grid_file(tmp_path / "grid.toml")
    fill(tmp_path, elsewhere(grid), shifted())
    intnacl("reproduce", "--list", "--config", str(grid), "--out", str(tmp_path), "--device", "cpu")
    assert "4 more finished runs" in capsys.readouterr().out


def test_runs_of_tables_that_are_not_named_are_no_others(capsys: Output, tmp_path: Path) -> None:
    selection = Selection(tables=("main",), overrides={}, out=tmp_path, device="cpu", workers=0)
    fill(tmp_path, selection.plan(selection.chosen()), shifted())
    intnacl(
        "reproduce", "--list", "--table", "weights", "--seeds", "0", "--device", "cpu", "--out", str(tmp_path)
    )
    assert "more finished runs" not in capsys.readouterr().out


def test_a_figure_made_elsewhere_stays_until_there_is_one_from_here(tmp_path: Path) -> None:
    grid = grid_file(tmp_path / "grid.toml")
    there = elsewhere(grid)
    fill(tmp_path, there, shifted(), scale="grid")
    selection = Selection(grid=grid, overrides={}, out=tmp_path, workers=0, device="cpu", max_minutes=0)
    reproduce(selection)
    assert runs_of(tmp_path) == {job.name for job in there.jobs}
    reproduce(replace(selection, max_minutes=None))
    assert runs_of(tmp_path) == {job.name for job in selection.plan(selection.chosen()).jobs}


def elsewhere(grid: Path) -> Plan:
    """The runs of a grid as a GPU does them."""
    return make_plan(read_grid(grid), [0], overrides={"train.precision": "bf16"})


def runs_of(results: Path) -> set[str]:
    """Behind the cells of the only table."""
    (table,) = record.read(results)["tables"].values()
    return {name for row in table["cells"] for cell in row for name in cell.values()}


def test_a_dry_run_prints_configurations_and_leaves_nothing(capsys: Output, tmp_path: Path) -> None:
    intnacl("reproduce", "--table", "2", "--seeds", "7", "--dry-run", "--out", str(tmp_path / "out"))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 18
    assert {line["config"]["seed"] for line in lines} == {7}
    intnacl("reproduce", "--table", "main", "--row", "SimCLR", "IntCl", "--trials", "2", "--dry-run")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(line["config"]["loss"]["alpha"] for line in lines) == [0, 0, 1, 1]
    milestones = ("--column", "100 epochs", "200 epochs")
    intnacl(
        "reproduce", "--table", "more_epochs", "--row", "SimCLR", *milestones, "--seeds", "0", "--dry-run"
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["config"]["train"]["epochs"] for line in lines] == [100, 200]
    assert lines[1]["goes_on_from"] == lines[0]["run"]
    assert not (tmp_path / "out").exists()


def test_chosen_columns_cost_what_they_train(capsys: Output, tmp_path: Path) -> None:
    """Without the milestones before it, a run of 2000 epochs trains all of them."""
    words = ("reproduce", "--list", "--table", "more_epochs", "--row", "SimCLR", "--trials", "1")
    hours = []
    for columns in ((), ("--column", "2000 epochs")):
        intnacl(*words, *columns, "--out", str(tmp_path / "out"))
        (total,) = re.findall(r"all, shared.* (\S+)", capsys.readouterr().out)
        hours.append(float(total))
    assert hours[1] > 0.6 * hours[0] > 0


def test_an_outsiders_grid_from_end_to_end(capsys: Output, tmp_path: Path) -> None:
    grid, out = grid_file(tmp_path / "grid.toml", label="x|<b>"), tmp_path / "out"
    words = ("reproduce", "--config", str(grid), "--trials", "1", "--out", str(out), "--workers", "0",
             "--device", "cpu")  # fmt: skip
    assert intnacl(*words) == 0
    assert "4 of 4 runs are finished" in capsys.readouterr().out
    assert intnacl(*words) == 0  # nothing is left to do
    intnacl("report", str(out))
    rows = read_csv(out / "report" / "results.csv")
    assert [row["row"] for row in rows] == ["SimCLR", "SimCLR", "x|<b>", "x|<b>"]
    assert all(0 < float(row["value"]) <= 100 for row in rows)
    assert (out / "report" / "mine-grid.svg").exists()


def test_failures_end_in_a_list_and_exit_code_1(capsys: Output, tmp_path: Path) -> None:
    words = ("reproduce", "--table", "figure1", "--seeds", "0", "--workers", "0", "--device", "cpu")
    code = intnacl(*words, "--out", str(tmp_path / "out"), "--root", str(tmp_path / "nowhere"))
    text = capsys.readouterr().out
    assert code == 1
    assert "0 of 7 runs are finished" in text
    assert text.count("failed: ") == 1, "one reason"
    assert re.search(r"failed: cifar100-\S+ and 6 more: .*nowhere", text)
    assert "7 failed; their output" in text


def test_a_time_limit_ends_in_how_to_go_on(capsys: Output, tmp_path: Path) -> None:
    grid = grid_file(tmp_path / "grid.toml")
    words = ("--config", str(grid), "--workers", "0", "--device", "cpu", "--max-minutes", "0")
    assert intnacl("reproduce", *words, "--out", str(tmp_path / "out")) == 0
    assert "stopped (time); the same command goes on." in capsys.readouterr().out


def test_seeds() -> None:
    assert seeds_of(3, ()) == (0, 1, 2)
    assert seeds_of(None, ()) == (0, 1, 2, 3, 4)
    assert seeds_of(None, (4, 2, 4)) == (4, 2)
    with pytest.raises(InputError, match="--trials 5 and --seeds exclude each other"):
        seeds_of(5, (4, 2))
    for trials in (0, -1, 1001, 2**64):
        with pytest.raises(InputError, match=f"trials={trials} must be a whole number from 1 to 1,000"):
            seeds_of(trials, ())


@pytest.mark.parametrize(("name", "key"), [("grid", "mine grid"), ("paper", "mine paper.toml")])
def test_a_grid_of_ones_own_is_marked(capsys: Output, tmp_path: Path, name: str, key: str) -> None:
    grid = grid_file(tmp_path / f"{name}.toml")
    words = ("--config", str(grid), "--workers", "0", "--device", "cpu", "--max-minutes", "0")
    intnacl("reproduce", *words, "--out", str(tmp_path / "out"))
    assert list(record.read(tmp_path / "out")["tables"]) == [key]


@pytest.mark.parametrize(
    ("setting", "value", "label"),
    [("train.epochs", "3", "1 epoch"), ("loss.negatives", "g2", "Debiased")],
    ids=["column", "row"],
)
def test_labels_are_not_made_wrong(tmp_path: Path, setting: str, value: str, label: str) -> None:
    out = tmp_path / "out"
    selection = Selection(
        grid=grid_file(tmp_path / "grid.toml"), overrides={setting: value}, out=out, workers=0, device="cpu",
        max_minutes=0,
    )  # fmt: skip
    for command in (print_plan, reproduce):
        with pytest.raises(InputError, match=rf"--set {setting}: .*'mine'.* '{label}'"):
            command(selection)
    assert not out.exists()


def test_the_supervised_baseline_can_be_shorter_than_the_papers(capsys: Output) -> None:
    words = ("reproduce", "--table", "supervised", "--seeds", "0", "--dry-run")
    for more, epochs in (((), 1000), (("--set", "train.epochs=300"), 300)):
        intnacl(*words, *more)
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [line["config"]["train"]["epochs"] for line in lines] == [epochs] * 2
        assert [line["config"]["objective"] for line in lines] == ["supervised"] * 2


def test_workers_that_died_are_told(capsys: Output, tmp_path: Path) -> None:
    session = new_session(tmp_path, jobs(), None)
    assert print_summary(session, Stop()) == 1
    assert "stopped (its workers died); the same command goes on." in capsys.readouterr().out


def test_what_an_earlier_session_gave_up_is_not_this_ones_failure(capsys: Output, tmp_path: Path) -> None:
    (job,) = jobs()
    folder = run_folder(tmp_path, job.name)
    folder.path.mkdir(parents=True)
    noted = {"error": "no data", "tries": {"earlier": 3}, "given_up": ["earlier"]}
    folder.failure.write_text(json.dumps(noted))
    stop = Stop(0)
    stop.reason = "time"
    assert print_summary(new_session(tmp_path, (job,), None), stop) == 0
    assert "stopped (time); the same command goes on." in capsys.readouterr().out


def test_nothing_asked_for_is_refused() -> None:
    with pytest.raises(InputError, match="name a --table, or take --all"):
        Selection(overrides={}, out=Path("none")).chosen()


def test_some_and_all_tables_at_once_are_refused() -> None:
    with pytest.raises(InputError, match="--table 2 figure1 and --all exclude each other"):
        Selection(overrides={}, out=Path("none"), tables=("2", "figure1"), everything=True).chosen()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_paper_at_tiny_scale(tmp_path: Path) -> None:
    begun = time.monotonic()
    words = ("reproduce", "--all", "--scale", "tiny", "--trials", "1", "--device", "cpu", "--workers", "2")
    done = subprocess.run(
        [sys.executable, "-m", "intnacl", *words, "--out", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    minutes = (time.monotonic() - begun) / 60
    intnacl("report", str(tmp_path))
    rows = read_csv(tmp_path / "report" / "results.csv")
    assert all(row["status"] == "finished" for row in rows)
    empty = {row["metric"] for row in rows if not row["value"]}
    assert empty == {"minutes"}  # two workers shared the CPU
    assert "autoattack" not in {row["metric"] for row in rows}  # which nobody ran
    assert {row["published_mean"] for row in rows} == {""}
    print(f"\n{done.stdout.splitlines()[-2]} {minutes:.1f} min")
