"""One attempt at a run: done once, resumed, inherited, retried, given up."""

import dataclasses
import errno
import json
from pathlib import Path
from typing import Any

import pytest
from grids import jobs

from intnacl.errors import InputError
from intnacl.paper import attempts
from intnacl.paper.attempts import DIED, TRIES, attempt, failure, finished, run_folder
from intnacl.paper.plan import Job
from intnacl.paper.reuse import inherit
from intnacl.runs.folder import RunFolder
from intnacl.training.journal import records
from intnacl.training.stop import Stop


def _attempt(job: Job, results: Path, session: str = "one") -> str:
    return attempt(job, results, device="cpu", stop=Stop(), session=session)


def _result(results: Path, job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_folder(results, job.name).result.read_text())
    return found


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Errors that the next runs raise, one each."""
    errors: list[Exception] = []

    def run(*_: object) -> None:
        raise errors.pop(0)

    monkeypatch.setattr("intnacl.runs.run", run)
    return errors


def test_a_run_is_done_once(tmp_path: Path) -> None:
    (job,) = jobs()
    assert _attempt(job, tmp_path) == "finished"
    folder = run_folder(tmp_path, job.name)
    assert set(_result(tmp_path, job)["accuracy"]) == {"digits"}
    assert not list(folder.checkpoints.glob("step-*"))  # nothing goes on from it
    assert "epoch 1/1" in folder.output.read_text()
    before = folder.result.stat().st_mtime_ns
    assert _attempt(job, tmp_path) == "finished"
    assert folder.result.stat().st_mtime_ns == before


def test_a_milestone_equals_a_run_of_its_length(tmp_path: Path) -> None:
    first, second = jobs(epochs=(1, 3))
    assert _attempt(second, tmp_path) == "waiting"
    assert _attempt(first, tmp_path) == "finished"
    assert _attempt(second, tmp_path) == "finished"
    assert "going on from step 2 of 6" in run_folder(tmp_path, second.name).output.read_text()
    log = records(run_folder(tmp_path, second.name).log)
    assert [row["epoch"] for row in log] == [1, 2, 3]
    alone = tmp_path / "alone"
    assert _attempt(dataclasses.replace(second, parent=None), alone) == "finished"
    went_on, straight = _result(tmp_path, second), _result(alone, second)
    assert went_on["protocol"]["encoder_sha256"] == straight["protocol"]["encoder_sha256"]
    assert went_on["accuracy"] == straight["accuracy"]


def test_a_run_with_a_state_of_its_own_inherits_none(tmp_path: Path) -> None:
    """Else a run that was stopped would lose the epochs in its log that its parent has not."""
    for name, step in (("parent", 2), ("child", 4)):
        (tmp_path / name / "checkpoints" / f"step-{step:09d}").mkdir(parents=True)
        (tmp_path / name / "log.jsonl").write_text(name)
    inherit(RunFolder(tmp_path / "parent"), RunFolder(tmp_path / "child"))
    assert (tmp_path / "child" / "log.jsonl").read_text() == "child"
    assert [path.name for path in (tmp_path / "child" / "checkpoints").iterdir()] == ["step-000000004"]


def test_a_state_is_copied_where_files_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parent" / "checkpoints" / "step-000000002").mkdir(parents=True)
    (tmp_path / "parent" / "checkpoints" / "step-000000002" / "state.json").write_text("{}")
    (tmp_path / "child").mkdir()

    def _refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", _refused)
    inherit(RunFolder(tmp_path / "parent"), RunFolder(tmp_path / "child"))
    assert (tmp_path / "child" / "checkpoints" / "step-000000002" / "state.json").read_text() == "{}"


def test_a_run_that_others_hold_is_left_alone(tmp_path: Path) -> None:
    (job,) = jobs()
    with run_folder(tmp_path, job.name).hold(device="cpu"):
        assert _attempt(job, tmp_path) == "busy"


def test_a_stopped_run_goes_on_and_is_no_failure(tmp_path: Path) -> None:
    (job,) = jobs()
    assert attempt(job, tmp_path, device="cpu", stop=Stop(0.0), session="one") == "stopped"
    noted = failure(run_folder(tmp_path, job.name))
    assert noted is not None
    assert (noted["tries"], noted["given_up"]) == ({"one": 0}, [])
    assert _attempt(job, tmp_path) == "finished"
    assert failure(run_folder(tmp_path, job.name)) is None


def test_a_stop_leaves_what_an_earlier_session_noted(tmp_path: Path, broken: list[Exception]) -> None:
    """Else the run would be a failure without a reason."""
    (job,) = jobs()
    broken += [InputError("no such data set")]
    assert _attempt(job, tmp_path) == "failed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("intnacl.runs.run", lambda *_: "terminate")
        assert _attempt(job, tmp_path, session="two") == "stopped"
    assert failure(run_folder(tmp_path, job.name)) == {
        "error": "no such data set", "tries": {"one": 1, "two": 0}, "given_up": ["one"],
    }  # fmt: skip


def test_failures_are_retried_then_given_up_until_the_next_session(
    tmp_path: Path, broken: list[Exception]
) -> None:
    (job,) = jobs()
    broken += [RuntimeError(f"no {i}") for i in range(TRIES + 1)]
    for i in range(TRIES):
        assert _attempt(job, tmp_path) == "failed"
        noted = failure(run_folder(tmp_path, job.name))
        assert noted is not None
        assert noted["error"].endswith(f"RuntimeError: no {i}\n")
        assert attempts.given_up(tmp_path, job.name, "one") == (i == TRIES - 1)
    assert _attempt(job, tmp_path) == "failed"
    assert len(broken) == 1  # it was not tried again
    assert _attempt(job, tmp_path, session="two") == "failed"
    assert not broken
    assert not attempts.given_up(tmp_path, job.name, "two")


def test_a_users_mistake_is_not_retried(tmp_path: Path, broken: list[Exception]) -> None:
    (job,) = jobs()
    broken += [InputError("no such data set")]
    assert _attempt(job, tmp_path) == "failed"
    assert failure(run_folder(tmp_path, job.name)) == {
        "error": "no such data set", "tries": {"one": 1}, "given_up": ["one"],
    }  # fmt: skip


def test_sessions_that_share_a_folder_do_not_undo_each_others_verdict(
    tmp_path: Path, broken: list[Exception]
) -> None:
    (job,) = jobs()
    broken += [InputError("bad"), InputError("bad")]
    for session in ("one", "two", "one", "two"):
        assert _attempt(job, tmp_path, session) == "failed"
        assert attempts.given_up(tmp_path, job.name, session)
    assert not broken  # each tried once
    noted = failure(run_folder(tmp_path, job.name))
    assert noted is not None
    assert noted["error"] == "bad"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"session": "s", "tries": 3, "error": "e", "given_up": true}']
)
def test_a_damaged_note_is_forgotten(tmp_path: Path, text: str) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "failure.json").write_text(text)
    assert failure(run_folder(tmp_path, "a")) is None


def test_a_run_that_kills_its_process_is_given_up(tmp_path: Path, broken: list[Exception]) -> None:
    (job,) = jobs()
    for _ in range(TRIES):
        broken.append(KeyboardInterrupt())  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):  # passes by like a kill: nothing is noted
            _attempt(job, tmp_path)
    assert _attempt(job, tmp_path) == "failed"
    noted = failure(run_folder(tmp_path, job.name))
    assert noted is not None
    assert noted["error"] == DIED


def test_what_goes_on_from_a_failed_run_fails_with_it(tmp_path: Path, broken: list[Exception]) -> None:
    first, second = jobs(epochs=(1, 2))
    broken += [InputError("bad")]
    _attempt(first, tmp_path)
    assert _attempt(second, tmp_path) == "failed"
    noted = failure(run_folder(tmp_path, second.name))
    assert noted is not None
    assert noted["error"] == f"it goes on from {first.name}, which failed"


def test_half_a_result_is_no_result(tmp_path: Path) -> None:
    (job,) = jobs()
    _attempt(job, tmp_path)
    folder = run_folder(tmp_path, job.name)
    whole = _result(tmp_path, job)
    for damage in ("", "{}", "[]", json.dumps({**whole, "accuracy": None})):
        folder.result.write_text(damage)
        assert not finished(tmp_path, job.name)
    folder.result.unlink()  # killed before the end
    assert _attempt(job, tmp_path) == "finished"
    assert _result(tmp_path, job)["accuracy"] == whole["accuracy"]
    assert finished(tmp_path, job.name)
