"""The display of runs during a session."""

import json
from pathlib import Path

import pytest
from grids import jobs
from made_up import note_failure, result_of, shifted
from rich.console import Console

from intnacl.paper.attempts import run_folder
from intnacl.paper.plan import Job
from intnacl.paper.progress import Progress, last_line, status_of


def _finish(results: Path, job: Job) -> None:
    folder = run_folder(results, job.name)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.result.write_text(json.dumps(result_of(job, shifted())))


def test_status_is_read_from_the_folders(tmp_path):
    done, failed, begun, _, failed_before = plan = jobs(rows=5)
    _finish(tmp_path, done)
    note_failure(tmp_path, failed_before, "bad", "before")
    note_failure(tmp_path, failed, "Traceback (most recent):\n  ...\nRuntimeError: [red]no[/red]\n", "now")
    folder = run_folder(tmp_path, begun.name)
    folder.path.mkdir(parents=True)
    folder.config.write_text("{}")
    folder.log.write_text('{"epoch": 1, "step": 5}\n')
    runs = [status_of(job, tmp_path, "now") for job in plan]
    assert [run.status for run in runs] == ["finished", "failed", "begun", "waiting", "waiting"]
    assert [run.detail for run in runs] == ["", "RuntimeError: [red]no[/red]", "epoch 1/1", "", ""]
    with folder.hold(device="cpu"):
        running = status_of(begun, tmp_path, "now")
    assert running.status == "running"
    assert running.detail.startswith("epoch 1/1 · 0.0 min · ")


@pytest.mark.parametrize(
    ("error", "line"),
    [("a\nb", "a"), ("Traceback (most…\n x\nValueError: bad\n\n", "ValueError: bad"), ("", "?")],
)
def test_the_line_of_an_error_that_is_shown(error, line):
    assert last_line(error) == line


def test_plain_lines_report_each_event_once(tmp_path, capsys):
    before, failed_before, now, failed = plan = jobs(rows=4)
    _finish(tmp_path, before)
    note_failure(tmp_path, failed_before, "bad", "before")  # it is tried again
    with Progress(plan, tmp_path, {}, "now") as progress:
        _finish(tmp_path, now)
        note_failure(tmp_path, failed, "bad", "now")
        progress.update(force=True)
        progress.update(force=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"[2/4] finished {now.name}", f"[2/4] failed {failed.name}: bad"]


def test_a_terminal_shows_a_table_with_the_time_left(tmp_path):
    """When all runs are finished, no empty table remains."""
    first, second, *others = plan = jobs(rows=15)
    progress = Progress(plan, tmp_path, {job.name: 10.0 for job in plan}, "now")
    with (tmp_path / "out").open("w") as file:
        progress.console = Console(force_terminal=True, width=150, height=40, record=True, file=file)
        with progress:
            _finish(tmp_path, first)
            note_failure(tmp_path, second, "[bold]odd[/bold]", "now")
            progress.update(force=True)
        text = progress.console.export_text()
        assert "13 waiting, 1 finished, 1 failed · about 0 min left" in text
        assert "[bold]odd[/bold]" in text
        assert others[0].name in text
        assert "… and 2 more" in text
        last = Progress((first,), tmp_path, {}, "now")
        last.console = Console(force_terminal=True, width=150, record=True, file=file)
        with last:
            pass
    assert last.console.export_text().split() == ["1", "finished"]
