"""Runs on a local Ray cluster, one of whose workers is killed."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grids import jobs

from intnacl.errors import InputError
from intnacl.paper.attempts import TRIES, finished, run_folder
from intnacl.paper.plan import Job
from intnacl.paper.progress import Progress
from intnacl.paper.ray_runner import connect, device_of, run_on_ray
from intnacl.paper.workers import new_session
from intnacl.training.stop import Stop


def test_a_missing_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"--ray needs ray: pip install 'intnacl\[ray\]'"):
        connect("auto")


class Unreachable:
    """A Ray whose tasks end before they can leave a word in the results folder."""

    exceptions = SimpleNamespace(RayError=OSError)

    def __init__(self) -> None:
        self.submitted: list[str] = []

    def remote(self, **_: object) -> Any:
        return lambda _: type("Task", (), {"remote": staticmethod(self._submit)})

    def _submit(self, job: Job, *_: object) -> object:
        self.submitted.append(job.name)
        return object()

    def wait(self, references: list[object], **_: object) -> tuple[list[object], list[object]]:
        return references, []

    def get(self, _: object) -> str:
        raise self.exceptions.RayError("no such folder")


def submitted_in_vain(plan: tuple[Job, ...], results: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs in the order in which they are submitted where none of them succeeds."""
    ray, stop = Unreachable(), Stop(0.05)
    monkeypatch.setattr("intnacl.paper.ray_runner.connect", lambda _: ray)
    monkeypatch.setattr("intnacl.paper.ray_runner.POLL_S", 0.01)
    session = new_session(results, plan, None)
    run_on_ray(session, "auto", "cpu", stop=stop, progress=Progress(plan, results, {}, "s"))
    assert stop.reason is None
    return ray.submitted


def test_tasks_that_leave_nothing_behind_are_not_submitted_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = jobs(epochs=(1, 2))
    submitted = submitted_in_vain(plan, tmp_path, monkeypatch)
    assert submitted == [plan[0].name] * (TRIES + 2)  # its child still waits for it


def test_a_run_that_trains_alike_waits_until_the_first_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = (*jobs(), *jobs(**{"probe.max_iter": 5}))
    submitted = submitted_in_vain(plan, tmp_path, monkeypatch)
    assert submitted == [plan[0].name] * (TRIES + 2) + [plan[1].name] * (TRIES + 2)


@pytest.fixture
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    path = os.pathsep.join(sys.path)
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )  # fmt: skip
    yield ray
    ray.shutdown()


def _kill_first_worker(results: Path, killed: list[int]) -> None:
    """Kill, once, the first process that holds a run."""
    while not killed:
        for lock in results.glob("runs/*/lock"):
            text = lock.read_text()
            if text:
                killed.append(json.loads(text)["pid"])
                os.kill(killed[0], signal.SIGKILL)
                return
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_all_runs_are_done_though_a_worker_is_killed(cluster: Any, tmp_path: Path) -> None:
    plan = jobs(rows=2, epochs=(1, 2))
    killed: list[int] = []
    thread = threading.Thread(target=_kill_first_worker, args=(tmp_path, killed))
    thread.start()
    session = new_session(tmp_path, plan, None)
    run_on_ray(
        session,
        "auto",
        device_of("auto", "auto"),
        stop=Stop(10.0),
        progress=Progress(plan, tmp_path, {}, "s"),
    )
    thread.join()
    assert killed
    assert killed[0] != os.getpid()
    assert device_of("auto", "cuda:1") == "cuda:1"
    assert [finished(tmp_path, job.name) for job in plan] == [True] * 4
    going_on = run_folder(tmp_path, plan[-1].name) / "output.txt"
    assert "going on from step 2 of 4" in going_on.read_text()
