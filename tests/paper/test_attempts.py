"""One attempt at a run: executed once, resumed, given up, or started with the work of an equal training."""

import dataclasses
import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from grids import jobs

from intnacl.errors import InputError
from intnacl.paper.attempts import (
    DIED,
    TRIES,
    Failure,
    attempt,
    device_name,
    failure,
    finished,
    given_up,
    mark_shared,
    run_folder,
)
from intnacl.paper.cells import figure
from intnacl.paper.plan import Job
from intnacl.paper.reuse import inherit
from intnacl.runs.folder import RunFolder
from intnacl.training.journal import records
from intnacl.training.stop import Stop

Try = Callable[..., str]


@pytest.fixture
def try_once(tmp_path: Path) -> Try:
    def once(job: Job, session: str = "one", results: Path = tmp_path, stop: Stop | None = None) -> str:
        return attempt(job, results, device="cpu", stop=stop or Stop(), session=session)

    return once


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | str]:
    """Errors that the next runs raise, or reasons of a stop that they return, one for each run."""
    endings: list[BaseException | str] = []

    def run(*_: object) -> str:
        ending = endings.pop(0)
        if isinstance(ending, BaseException):
            raise ending
        return ending

    monkeypatch.setattr("intnacl.runs.stages.train_and_measure", run)
    return endings


def result_of(results: Path, job: Job) -> dict[str, Any]:
    return json.loads(run_folder(results, job.name).result.read_text())  # type: ignore[no-any-return]


def noted(results: Path, job: Job) -> Failure:
    found = failure(run_folder(results, job.name))
    assert found is not None
    return found


def marked(results: Path) -> list[str]:
    return sorted(path.parent.name for path in results.glob("runs/*/shared"))


def test_a_run_is_executed_once_and_a_damaged_result_does_not_count(tmp_path, try_once):
    (job,) = jobs()
    folder = run_folder(tmp_path, job.name)
    with folder.hold(device="cpu"):
        assert try_once(job) == "busy"
    assert try_once(job) == "finished"
    result = result_of(tmp_path, job)
    assert set(result["accuracy"]) == {"digits"}
    assert not list(folder.checkpoints.glob("step-*"))  # no run continues it
    assert "epoch 1/1" in folder.output.read_text()
    assert marked(tmp_path) == []  # it had the device to itself
    assert "shared" not in result["protocol"]["hardware"]
    assert figure(result, "digits", "minutes").value == pytest.approx(result["time_s"]["pretrain"] / 60)
    before = folder.result.stat().st_mtime_ns
    assert try_once(job) == "finished"
    assert folder.result.stat().st_mtime_ns == before
    for damage in ("", "{}", "[]", json.dumps({**result, "accuracy": None})):
        folder.result.write_text(damage)
        assert not finished(tmp_path, job.name)
    folder.result.unlink()  # killed before the end
    assert try_once(job) == "finished"
    assert result_of(tmp_path, job)["accuracy"] == result["accuracy"]


def test_a_milestone_equals_a_run_of_its_length(tmp_path, try_once):
    first, second = jobs(epochs=(1, 3))
    assert [try_once(job) for job in (second, first, second)] == ["waiting", "finished", "finished"]
    folder = run_folder(tmp_path, second.name)
    assert "going on from step 2 of 6" in folder.output.read_text()
    assert [row["epoch"] for row in records(folder.log)] == [1, 2, 3]
    alone = tmp_path / "alone"
    assert try_once(dataclasses.replace(second, parent=None), results=alone) == "finished"
    went_on, straight = result_of(tmp_path, second), result_of(alone, second)
    assert went_on["protocol"]["encoder_sha256"] == straight["protocol"]["encoder_sha256"]
    assert went_on["accuracy"] == straight["accuracy"]


def test_a_stopped_run_resumes_and_is_not_a_failure(tmp_path, try_once):
    (job,) = jobs()
    assert try_once(job, stop=Stop(0.0)) == "stopped"
    assert noted(tmp_path, job) == {"error": "", "tries": {"one": 0}, "given_up": []}
    assert try_once(job) == "finished"
    assert failure(run_folder(tmp_path, job.name)) is None


def test_failures_are_retried_then_given_up_until_the_next_session(tmp_path, try_once, broken):
    (job,) = jobs()
    broken += [RuntimeError(f"no {i}") for i in range(TRIES + 1)]
    for i in range(TRIES):
        assert try_once(job) == "failed"
        assert noted(tmp_path, job)["error"].endswith(f"RuntimeError: no {i}\n")
        assert given_up(tmp_path, job.name, "one") == (i == TRIES - 1)
    assert try_once(job) == "failed"
    assert len(broken) == 1  # it was not tried again
    assert try_once(job, "two") == "failed"
    assert not broken
    assert not given_up(tmp_path, job.name, "two")


def test_a_users_mistake_is_not_retried_and_sessions_keep_separate_notes(tmp_path, try_once, broken):
    (job,) = jobs()
    broken += [InputError("no such data set"), InputError("no such data set"), "terminate"]
    for session in ("one", "two", "one", "two"):
        assert try_once(job, session) == "failed"
        assert given_up(tmp_path, job.name, session)
    assert broken == ["terminate"]  # each tried once
    assert try_once(job, "three") == "stopped"  # the notes of the others stay
    assert noted(tmp_path, job) == {
        "error": "no such data set", "tries": {"one": 1, "two": 1, "three": 0}, "given_up": ["one", "two"],
    }  # fmt: skip


def test_a_run_that_kills_its_process_is_given_up(tmp_path, try_once, broken):
    (job,) = jobs()
    for _ in range(TRIES):
        broken.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):  # like a kill, it leaves no note
            try_once(job)
    assert try_once(job) == "failed"
    assert noted(tmp_path, job)["error"] == DIED


def test_a_run_that_continues_a_failed_one_fails_too(tmp_path, try_once, broken):
    first, second = jobs(epochs=(1, 2))
    broken += [InputError("bad")]
    assert [try_once(job) for job in (first, second)] == ["failed", "failed"]
    assert noted(tmp_path, second)["error"] == f"it continues {first.name}, which failed"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"session": "s", "tries": 3, "error": "e", "given_up": true}']
)
def test_a_damaged_note_is_ignored(tmp_path, text):
    folder = run_folder(tmp_path, "a")
    folder.path.mkdir(parents=True)
    folder.failure.write_text(text)
    assert failure(folder) is None


def test_two_runs_on_one_device_are_both_marked(tmp_path, try_once):
    names = ("done", "other", "elsewhere", "old", "there")
    done, other, elsewhere, old, there = (run_folder(tmp_path, name) for name in names)
    done.path.mkdir(parents=True)
    with (
        elsewhere.hold(device="cuda:1"), other.hold(device="cpu"),
        old.hold(device="cpu"), there.hold(device="cpu"),
    ):  # fmt: skip
        there.signature.write_text('{"host": "another", "pid": 1, "since": 0, "device": "cpu"}')
        old.signature.write_text('{"host": "some", "pid": 1, "since": 0}')  # of an earlier version
        mark_shared(tmp_path, other)
        assert marked(tmp_path) == []
        (job,) = jobs()
        assert try_once(job) == "finished"
    assert marked(tmp_path) == sorted([job.name, "other"])
    result = result_of(tmp_path, job)
    assert result["protocol"]["hardware"]["shared"] is True
    assert figure(result, "digits", "minutes").value is None


def test_a_run_that_is_only_measured_keeps_its_minutes(tmp_path, try_once):
    """Neither the attempted run nor the other run on the device is marked if it is only measured."""
    (job,) = jobs()
    other, third = run_folder(tmp_path, "other"), run_folder(tmp_path, "third")
    assert try_once(job) == "finished"
    run_folder(tmp_path, job.name).result.unlink()
    with other.hold(device="cpu"):
        other.encoder.touch()
        assert try_once(job) == "finished"
        assert marked(tmp_path) == []
        with third.hold(device="cpu"):
            mark_shared(tmp_path, third)
    assert marked(tmp_path) == ["third"]


def test_a_gpu_has_one_name_in_all_processes(monkeypatch):
    """`cuda`, `cuda:0`, and the `cuda:1` of another process may be the same GPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"GPU-{device.index or 0}")
    )
    assert [device_name(d) for d in ("cuda", "cuda:0", "cuda:1")] == ["GPU-0", "GPU-0", "GPU-1"]
    assert [device_name(d) for d in ("cpu", "cuda:2")] == ["cpu", "cuda:2"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_gpu_is_named_by_its_uuid():
    assert device_name("cuda") == device_name("cuda:0") != "cuda:0"


REUSES = "reuses the encoder of"


def done(job: Job, results: Path) -> tuple[dict[str, Any], str]:
    """Execute a run, and return its result and its output."""
    assert attempt(job, results, device="cpu", stop=Stop(), session="one") == "finished"
    folder = run_folder(results, job.name)
    return json.loads(folder.result.read_text()), folder.output.read_text()


def stopped(folder: RunFolder, step: int = 2) -> RunFolder:
    """Return the folder of a run that was stopped after a step."""
    state = folder.checkpoints / f"step-{step:09d}"
    state.mkdir(parents=True)
    (state / "state.json").write_text("{}")
    folder.log.write_text(folder.path.name)
    return folder


def measured(results: Path, *jobs: Job) -> set[str]:
    return {path.name for job in jobs for path in run_folder(results, job.name).measurements.glob("*.json")}


def test_another_attack_is_measured_on_the_same_encoder(tmp_path):
    (first,) = jobs()
    (second,) = jobs(**{"evaluation.attacks": ("fgsm", "pgd")})
    one, _ = done(first, tmp_path)
    run_folder(tmp_path, first.name).mark_shared()
    two, said = done(second, tmp_path)
    assert f"{REUSES} {first.name}" in said
    assert "epoch 1/1" not in said
    assert one["protocol"]["encoder_sha256"] == two["protocol"]["encoder_sha256"]
    assert two["protocol"]["hardware"]["shared"] is True  # as during the training of its encoder
    assert one["time_s"]["probe digits"] == two["time_s"]["probe digits"]  # not done again
    assert one["accuracy"]["digits"]["pgd"] is None
    assert two["accuracy"]["digits"]["pgd"] is not None
    assert done(second, tmp_path / "alone")[0]["accuracy"] == two["accuracy"]


@pytest.mark.parametrize(
    ("change", "gone", "taken"),
    [
        ({"probe.max_iter": 5}, None, True), ({"augment.strength": 0.1}, None, False),
        ({"evaluation.eps": (0.02,)}, "config.json", False),
        ({"evaluation.eps": (0.02,)}, "encoder.safetensors", False),
    ],
    ids=["another probe", "another training", "an unknown encoder", "no encoder"],
)  # fmt: skip
def test_the_encoder_of_an_equal_training_is_reused(tmp_path, change, gone, taken):
    (first,), (second,) = jobs(), jobs(**change)
    assert first.name != second.name
    assert first.name.rpartition("-")[0] == second.name.rpartition("-")[0]
    done(first, tmp_path)
    if gone:
        (run_folder(tmp_path, first.name) / gone).unlink()
    result, said = done(second, tmp_path)
    assert (REUSES in said) is taken
    assert [probe["probe"]["max_iter"] for probe in result["probes"]] == [second.config.probe.max_iter]
    assert done(second, tmp_path / "alone")[0]["accuracy"] == result["accuracy"]


def test_all_measurements_are_reused_and_again_after_an_interruption(tmp_path):
    """They come from every run with the same encoder, which is copied last: without it, nothing counts."""
    first, second, third = (
        jobs(**{"evaluation.attacks": attacks})[0] for attacks in (("fgsm",), ("pgd",), ("fgsm", "pgd"))
    )
    for job in (first, second):
        done(job, tmp_path)
    known = measured(tmp_path, first, second)
    folder = run_folder(tmp_path, third.name)
    for times in (1, 2):
        assert done(third, tmp_path)[1].count(REUSES) == times
        assert known <= measured(tmp_path, third)
        for path in (folder.result, folder.encoder):
            path.unlink()
        shutil.rmtree(folder.measurements)


def test_a_stopped_training_is_continued(tmp_path):
    (first,), (second,) = jobs(epochs=(3,)), jobs(epochs=(3,), **{"evaluation.eps": (0.02,)})
    assert attempt(first, tmp_path, device="cpu", stop=Stop(max_minutes=0), session="one") == "stopped"
    two, said = done(second, tmp_path)
    assert "going on from step" in said
    alone, _ = done(second, tmp_path / "alone")
    assert alone["protocol"]["encoder_sha256"] == two["protocol"]["encoder_sha256"]


def test_a_longer_run_continues_any_shorter_one_that_kept_its_state(tmp_path):
    one, *_ = jobs(epochs=(1, 2))
    done(one, tmp_path)  # it keeps its state for the second run, which is never executed
    *_, three = jobs(epochs=(1, 2, 3))
    assert "going on from step 2 of 6" in done(dataclasses.replace(three, parent=None), tmp_path)[1]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("links", [True, False])
def test_a_state_is_inherited_with_the_mark_of_a_shared_device(tmp_path, monkeypatch, links, shared):
    """The time of a longer run includes the shorter one's. Files are copied if they cannot be linked."""

    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    parent, child = stopped(RunFolder(tmp_path / "parent")), RunFolder(tmp_path / "child")
    if shared:
        parent.mark_shared()
    if not links:
        monkeypatch.setattr("os.link", refused)
    inherit(parent, child)
    assert (child.checkpoints / "step-000000002" / "state.json").read_text() == "{}"
    assert child.shared.exists() == shared


def test_a_state_is_neither_taken_from_a_run_in_training_nor_given_to_a_run_with_its_own(tmp_path):
    """A run in training may remove its state, and a run's own log may have more epochs than its parent's."""
    parent, begun = stopped(RunFolder(tmp_path / "parent")), stopped(RunFolder(tmp_path / "begun"), 4)
    child = RunFolder(tmp_path / "child")
    inherit(parent, begun)
    assert begun.log.read_text() == "begun"
    assert [path.name for path in begun.checkpoints.iterdir()] == ["step-000000004"]
    parent.log.unlink()  # stopped within its first epoch
    with RunFolder(parent.path).hold():
        inherit(parent, child)
        assert not child.path.exists()
        parent.result.touch()  # its worker is about to release it
        inherit(parent, child)
    assert (child.checkpoints / "step-000000002" / "state.json").exists()
