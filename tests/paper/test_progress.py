"""What is told about runs."""

import json
from pathlib import Path

import pytest
from grids import jobs
from made_up import result_of, shifted
from rich.console import Console

from intnacl.paper.attempts import run_folder
from intnacl.paper.plan import Job
from intnacl.paper.progress import Progress, last_line, state_of


def _fail(results: Path, job: Job, error: str, session: str = "now") -> None:
    noted = {"error": error, "tries": {session: 3}, "given_up": [session]}
    run_folder(results, job.name).path.mkdir(parents=True)
    run_folder(results, job.name).failure.write_text(json.dumps(noted))


def _finish(results: Path, job: Job) -> None:
    run_folder(results, job.name).path.mkdir(parents=True, exist_ok=True)
    run_folder(results, job.name).result.write_text(json.dumps(result_of(job, shifted())))


def test_states_are_read_from_the_folders(tmp_path: Path) -> None:
    done, failed, begun, waiting, failed_before = plan = jobs(rows=5)
    _finish(tmp_path, done)
    _fail(tmp_path, failed_before, "bad", session="before")
    _fail(tmp_path, failed, "Traceback (most recent call last):\n  ...\nRuntimeError: [red]no[/red]\n")
    folder = run_folder(tmp_path, begun.name)
    folder.path.mkdir(parents=True)
    folder.config.write_text("{}")
    folder.log.write_text('{"epoch": 1}\n')
    states = [state_of(job, tmp_path, "now") for job in plan]
    assert [state.status for state in states] == ["finished", "failed", "begun", "waiting", "waiting"]
    assert [state.detail for state in states] == ["", "RuntimeError: [red]no[/red]", "epoch 1/1", "", ""]
    with folder.hold(device="cpu"):
        running = state_of(begun, tmp_path, "now")
    assert running.status == "running"
    assert running.detail.startswith("epoch 1/1 · 0.0 min · ")
    del waiting


@pytest.mark.parametrize(
    ("error", "line"),
    [("a\nb", "a"), ("Traceback (most…\n x\nValueError: bad\n\n", "ValueError: bad"), ("", "?")],
)
def test_the_line_that_says_what_happened(error: str, line: str) -> None:
    assert last_line(error) == line


def test_plain_lines_tell_each_event_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, failed_before, now, failed = plan = jobs(rows=4)
    _finish(tmp_path, before)
    _fail(tmp_path, failed_before, "bad", session="before")  # it is tried again
    with Progress(plan, tmp_path, {}, "now") as progress:
        _finish(tmp_path, now)
        _fail(tmp_path, failed, "bad")
        progress.update(force=True)
        progress.update(force=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"[2/4] finished {now.name}", f"[2/4] failed {failed.name}: bad"]


def test_on_a_terminal_a_table_with_the_time_left(tmp_path: Path) -> None:
    first, second, third = plan = jobs(rows=3)
    progress = Progress(plan, tmp_path, {job.name: 10.0 for job in plan}, "now")
    progress.console = Console(force_terminal=True, width=150, record=True, file=(tmp_path / "out").open("w"))
    with progress:
        _finish(tmp_path, first)
        _fail(tmp_path, second, "[bold]odd[/bold]")
        progress._begun -= 120
    text = progress.console.export_text()
    assert "1 finished, 1 failed, 1 waiting · about 2 min left" in text
    assert "[bold]odd[/bold]" in text
    assert third.name in text
    progress.console.file.close()


def test_on_a_terminal_no_empty_table_stays_behind(tmp_path: Path) -> None:
    (only,) = plan = jobs(rows=1)
    _finish(tmp_path, only)
    progress = Progress(plan, tmp_path, {}, "now")
    with (tmp_path / "out").open("w") as file:
        progress.console = Console(force_terminal=True, width=150, record=True, file=file)
        with progress:
            pass
    assert progress.console.export_text().split() == ["1", "finished"]
