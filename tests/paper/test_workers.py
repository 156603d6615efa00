"""Workers: one loop submits the runs, and kills, stops and failures end as they should."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grids import grid_file, jobs
from made_up import note_failure

from intnacl.errors import InputError
from intnacl.paper.attempts import TRIES, Outcome, finished, run_folder
from intnacl.paper.plan import Job
from intnacl.paper.progress import Progress
from intnacl.paper.session import Executor, Session, new_session, run_all
from intnacl.paper.workers import (
    InProcess,
    Processes,
    RayTasks,
    WorkerStop,
    connect,
    local_devices,
    ray_device,
    threads_of,
)
from intnacl.training.stop import Stop
from mistakes import must_refuse


def run(session: Session, executor: Executor, stop: Stop | None = None) -> None:
    progress = Progress(session.jobs, session.results, {}, session.name)
    run_all(session, executor, stop=stop or Stop(), progress=progress)


def run_here(session: Session, stop: Stop | None = None) -> None:
    stop = stop or Stop()
    run(session, InProcess(session, "cpu", stop), stop)


def figures(results: Path) -> dict[str, Any]:
    """Return the measurements of all runs of a folder, without times."""
    found = {}
    for path in sorted(results.glob("runs/*/result.json")):
        result = json.loads(path.read_text())
        attacks = [row["accuracy"] for row in result["attacks"]]
        found[path.parent.name] = (result["accuracy"], attacks, result["protocol"]["encoder_sha256"])
    return found


def command(grid: Path, out: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "intnacl", "reproduce", "--config", str(grid), "--out", str(out),
        "--device", "cpu", "--trials", "1", *more,
    ]  # fmt: skip


class Scripted:
    """An executor with room for two runs, whose attempts end at once with the outcomes that a test gives."""

    def __init__(self, outcome: Callable[[Job], Outcome]) -> None:
        self.outcome = outcome
        self.submitted: list[str] = []
        self.running: list[Job] = []
        self.cancelled = False

    def has_room(self) -> bool:
        return len(self.running) < 2

    def submit(self, job: Job) -> None:
        assert self.has_room()
        self.submitted.append(job.name)
        self.running.append(job)

    def poll(self, seconds: float) -> list[tuple[Job, Outcome]]:
        ended, self.running = [(job, self.outcome(job)) for job in self.running], []
        return ended

    def cancel(self) -> None:
        self.cancelled = True


def test_runs_are_submitted_as_they_become_free(tmp_path):
    """A milestone is submitted after its parent, and only one run per encoder at a time."""
    first, second = jobs(epochs=(1, 2))
    (twin,), (other,) = jobs(**{"probe.max_iter": 5}), jobs(**{"augment.strength": 0.1})
    session = new_session(tmp_path, [first, twin, second, other], None)

    def outcome(job: Job) -> Outcome:
        note_failure(tmp_path, job, "x", session.name)
        return "failed"

    executor = Scripted(outcome)
    run(session, executor)
    assert executor.submitted == [job.name for job in (first, other, twin, second)]
    assert executor.cancelled


def test_a_run_waits_while_another_command_trains_its_encoder(tmp_path):
    (first,), (twin,), (other,) = jobs(), jobs(**{"probe.max_iter": 5}), jobs(**{"augment.strength": 0.1})
    session = new_session(tmp_path, [first, twin, other], None)

    class Until(Stop):
        def due(self) -> bool:
            return finished(tmp_path, other.name)

    with run_folder(tmp_path, first.name).hold(device="elsewhere") as mine:
        assert mine
        run_here(session, Until())
        assert not run_folder(tmp_path, twin.name).path.exists()
    run_here(session)
    assert session.open_jobs() == []
    assert "reuses the encoder of" in run_folder(tmp_path, twin.name).output.read_text()


@pytest.mark.parametrize("how", ["trained", "given up"])
def test_no_run_waits_for_an_encoder_that_exists_or_was_given_up(tmp_path, how):
    (first,), (twin,) = jobs(), jobs(**{"probe.max_iter": 5})
    session, folder = new_session(tmp_path, [first, twin], None), run_folder(tmp_path, first.name)
    folder.path.mkdir(parents=True)
    if how == "trained":
        folder.encoder.touch()
    else:
        note_failure(tmp_path, first, "x", session.name)
    assert session.free_jobs(session.open_jobs()) == ([first, twin] if how == "trained" else [twin])


def test_runs_that_fail_without_a_note_are_not_tried_forever(tmp_path):
    """If the machine cannot write, a child waits for its parent, but a run of the same encoder starts."""
    first, child = jobs(epochs=(1, 2))
    (twin,) = jobs(**{"probe.max_iter": 5})
    executor = Scripted(lambda job: "failed")
    run(new_session(tmp_path, (first, child, twin), None), executor)
    assert executor.submitted == [first.name] * (TRIES + 2) + [twin.name] * (TRIES + 2)


@pytest.fixture
def forkserver() -> str:
    """A start method for workers that imports the package only once."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["intnacl.paper.workers"])
    return "forkserver"


class Deadly(Job):
    """A run whose worker dies before it can leave a note."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)


def test_a_worker_that_keeps_dying_is_not_replaced(tmp_path, forkserver):
    (job,) = jobs()
    session = new_session(tmp_path, [job], None)
    deadly = Deadly(name=job.name, config=job.config)
    executor = Processes(session, ["cpu"], start_method=forkserver)
    ended: list[tuple[Job, Outcome]] = []
    while executor.has_room():
        executor.submit(deadly)
        ended += executor.poll(60)
    executor.cancel()
    assert ended == [(deadly, "failed")] * (TRIES + 2)


def test_a_folder_that_cannot_be_written_ends_the_command(tmp_path, forkserver):
    (tmp_path / "runs").write_text("a file")
    session = new_session(tmp_path, jobs(), None)
    with pytest.raises(InputError, match="could not be written: a file is where a folder is needed"):
        run(session, Processes(session, ["cpu"], start_method=forkserver))


def test_a_worker_stops_when_its_parent_is_gone(monkeypatch):
    parent = SimpleNamespace(is_alive=lambda: True)
    monkeypatch.setattr("multiprocessing.parent_process", lambda: parent)
    stop = WorkerStop(None)
    assert not stop.due()
    parent.is_alive = lambda: False
    assert stop.due()
    assert stop.reason == "terminate"


@pytest.mark.parametrize(
    ("gpus", "device", "workers", "devices"),
    [
        (2, "cpu", None, ["cpu"]), (2, "cpu", 3, ["cpu"] * 3), (2, "cuda:1", None, ["cuda:1"]),
        (2, "auto", None, ["cuda:0", "cuda:1"]), (2, "cuda", 3, ["cuda:0", "cuda:1", "cuda:0"]),
        (0, "auto", None, ["cpu"]),
        (2, "cpu", -1, "workers=-1 must be a whole number from 0 to 1,024"),
        (2, "cpu", 2**64, f"workers={2**64} must be a whole number from 0 to 1,024"),
        (2, "gpu", None, "device='gpu' is unknown: take auto, cpu"),
        (2, "cuda:2", None, "device='cuda:2': this machine has 2 GPUs"),
        (0, "cuda", None, "no GPU that torch can use"),
    ],
)  # fmt: skip
def test_workers_are_spread_over_devices(monkeypatch, gpus, device, workers, devices):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    if isinstance(devices, str):
        must_refuse(local_devices, device, workers, devices)
    else:
        assert local_devices(device, workers) == devices


def test_workers_share_the_threads_of_torch(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)  # of the machine's 64, say
    assert [threads_of(workers) for workers in (1, 3, 16)] == [8, 2, 1]


def test_two_processes_share_the_work(tmp_path):
    grid = grid_file(tmp_path / "grid.toml")
    both = [
        subprocess.Popen(command(grid, tmp_path / "out", "--workers", "0"), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=600)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all("4 of 4 runs are finished" in text for text in said)
    folders = list((tmp_path / "out" / "runs").iterdir())
    assert len(folders) == 4
    for folder in folders:  # each was trained by one of them, once
        assert (folder / "output.txt").read_text().count("updates to go") == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_kills_end_in_the_same_results(tmp_path):
    grid = grid_file(tmp_path / "grid.toml")
    grid.write_text(grid.read_text().replace("batch_size = 512", "batch_size = 64, save_steps = 5"))
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    begun = time.monotonic()
    subprocess.run(command(grid, straight, "--workers", "1"), check=True, timeout=600)
    whole = time.monotonic() - begun
    for i in range(10):
        process = subprocess.Popen(command(grid, killed, "--workers", "1"), start_new_session=True)
        time.sleep(whole * (0.35 + 0.05 * i))  # start-up alone takes a third
        if i % 2:
            os.killpg(process.pid, signal.SIGKILL)  # workers too
        else:
            process.kill()  # its worker notices
        process.wait()
    subprocess.run(command(grid, killed, "--workers", "2"), check=True, timeout=600)
    assert figures(killed) == figures(straight)
    assert len(figures(straight)) == 4


def first_holder(results: Path, seconds: float = 120) -> int:
    """Return the process that first locks one of the runs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for path in results.glob("runs/*/holder.json"):
            text = path.read_text()
            if text:
                return int(json.loads(text)["pid"])
        time.sleep(0.02)
    raise TimeoutError


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_worker_is_replaced(tmp_path):
    grid = grid_file(tmp_path / "grid.toml")
    words = command(grid, tmp_path / "out", "--workers", "1")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    worker = first_holder(tmp_path / "out")
    assert worker != process.pid
    os.kill(worker, signal.SIGKILL)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    assert "4 of 4 runs are finished" in said


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", ["0", "1"])
def test_sigterm_saves_and_stops(tmp_path, workers):
    grid = grid_file(tmp_path / "grid.toml")
    grid.write_text(grid.read_text().replace('"train.epochs" = 2', '"train.epochs" = 400'))
    words = command(grid, tmp_path / "out", "--workers", workers)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    runs = tmp_path / "out" / "runs"
    while not list(runs.glob("*400epochs*/log.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.terminate()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "stopped (terminate); the same command resumes." in said
    assert list(runs.glob("*400epochs*/checkpoints/step-*"))


def test_a_missing_ray_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    must_refuse(connect, "auto", r"--ray needs ray: pip install '/.*\[ray\]'")


class BrokenRay:
    """A Ray whose tasks end before they can leave a note in the results folder."""

    exceptions = SimpleNamespace(RayError=OSError)

    def remote(self, **_: object) -> Any:
        return lambda _: SimpleNamespace(remote=lambda *_: object())

    def wait(self, references: list[object], **_: object) -> tuple[list[object], list[object]]:
        return references[:1], references[1:]

    def get(self, _: object) -> str:
        raise self.exceptions.RayError("no such folder\nand more")

    def cancel(self, _: object) -> None:
        raise AssertionError("all tasks have ended")


def test_a_task_that_ray_gives_up_is_reported_and_tried_again(tmp_path, capsys):
    (job,) = jobs()
    session = new_session(tmp_path, [job], None)
    run(session, RayTasks(session, BrokenRay(), "cpu"))
    assert capsys.readouterr().out.splitlines() == [f"{job.name}: no such folder"] * (TRIES + 2)


@pytest.mark.parametrize(
    ("gpus", "device", "found"), [(2, "auto", "cuda"), (0, "auto", "cpu"), (2, "cpu", "cpu")]
)
def test_tasks_use_a_gpu_if_the_cluster_has_any(gpus, device, found):
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 4.0, "GPU": float(gpus)})
    assert ray_device(ray, device) == found


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


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_all_runs_finish_on_ray_even_if_a_worker_is_killed(cluster, tmp_path):
    plan = jobs(rows=2, epochs=(1, 2))
    killed: list[int] = []

    def kill() -> None:
        killed.append(first_holder(tmp_path))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    session = new_session(tmp_path, plan, None)
    run(session, RayTasks(session, connect("auto"), ray_device(cluster, "auto")), Stop(10.0))
    thread.join()
    assert killed[0] != os.getpid()
    assert [finished(tmp_path, job.name) for job in plan] == [True] * 4
    going_on = run_folder(tmp_path, plan[-1].name).output
    assert "going on from step 2 of 4" in going_on.read_text()
