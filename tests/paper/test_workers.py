"""Workers: they share what there is to do, outlive kills, and stop when told."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from grids import grid_file, jobs

from intnacl.errors import InputError
from intnacl.paper.attempts import TRIES, failure, finished, run_folder
from intnacl.paper.lock import hold
from intnacl.paper.progress import Progress
from intnacl.paper.workers import WorkerStop, local_devices, new_session, run_local, threads_of, work
from intnacl.training.stop import Stop


def figures(results: Path) -> dict[str, Any]:
    """What all runs of a folder measured, without times."""
    found = {}
    for path in sorted(results.glob("runs/*/result.json")):
        result = json.loads(path.read_text())
        checksum = result["protocol"]["encoder_sha256"]
        found[path.parent.name] = (
            result["accuracy"],
            [row["accuracy"] for row in result["attacks"]],
            checksum,
        )
    return found


def command(grid: Path, out: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "intnacl", "reproduce", "--config", str(grid), "--out", str(out),
        "--device", "cpu", "--trials", "1", *more,
    ]  # fmt: skip


def test_one_worker_does_everything(tmp_path: Path) -> None:
    plan = jobs(rows=2)
    work(new_session(tmp_path, plan, None), "cpu", stop=Stop())
    assert all(finished(tmp_path, job.name) for job in plan)


def test_failed_runs_are_listed_while_others_go_on(tmp_path: Path) -> None:
    good = jobs()[0]
    bad = jobs(dataset="cifar10", root=str(tmp_path / "nowhere"))[0]
    work(new_session(tmp_path, [bad, good], None), "cpu", stop=Stop())
    assert finished(tmp_path, good.name)
    noted = failure(run_folder(tmp_path, bad.name))
    assert noted is not None
    assert noted["given_up"]
    assert str(tmp_path / "nowhere") in noted["error"]


def test_a_run_waits_where_another_is_about_to_train_its_encoder(tmp_path: Path) -> None:
    (first,), (twin,), (other,) = jobs(), jobs(**{"probe.max_iter": 5}), jobs(**{"augment.strength": 0.1})
    session = new_session(tmp_path, [first, twin, other], None)
    assert session.free_jobs(session.open_jobs()) == [first, other]
    stop = Stop()

    def _look() -> None:
        stop.reason = "time" if finished(tmp_path, other.name) else None

    with hold(run_folder(tmp_path, first.name), "elsewhere") as mine:
        assert mine
        work(session, "cpu", stop=stop, look=_look)
        assert not run_folder(tmp_path, twin.name).exists()
    work(session, "cpu", stop=Stop())
    assert session.open_jobs() == []
    assert "takes the encoder of" in (run_folder(tmp_path, twin.name) / "output.txt").read_text()


@pytest.mark.parametrize("how", ["trained", "given up"])
def test_nobody_waits_for_an_encoder_that_is_there_or_will_not_come(tmp_path: Path, how: str) -> None:
    (first,), (twin,) = jobs(), jobs(**{"probe.max_iter": 5})
    session, folder = new_session(tmp_path, [first, twin], None), run_folder(tmp_path, first.name)
    folder.mkdir(parents=True)
    if how == "trained":
        (folder / "encoder.safetensors").touch()
    else:
        noted = {"error": "x", "tries": {}, "given_up": [session.name]}
        (folder / "failure.json").write_text(json.dumps(noted))
    assert session.free_jobs(session.open_jobs()) == ([first, twin] if how == "trained" else [twin])


def test_a_time_limit_stops(tmp_path: Path) -> None:
    session = new_session(tmp_path, jobs(), 0.0)
    work(session, "cpu", stop=Stop(session.minutes_left()))
    assert session.open_jobs()


def test_a_worker_stops_when_its_parent_is_gone() -> None:
    assert not WorkerStop(None, os.getppid()).due()
    orphan = WorkerStop(None, os.getppid() + 1)
    assert orphan.due()
    assert orphan.reason == "terminate"


def test_workers_that_die_at_once_are_not_started_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    class Dead:
        exitcode = -9

        def join(self, seconds: float | None = None) -> None: ...
        def is_alive(self) -> bool:
            return False

        def terminate(self) -> None: ...

    def start(session: object, device: str, workers: int) -> Dead:
        begun.append(device)
        return Dead()

    monkeypatch.setattr("intnacl.paper.workers._start", start)
    plan = jobs()
    run_local(
        new_session(tmp_path, plan, None), ["cpu"], stop=Stop(), progress=Progress(plan, tmp_path, {}, "s")
    )
    assert len(begun) == TRIES + 2


def test_a_folder_that_cannot_be_written_ends_a_worker_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").write_text("a file")
    run_local(
        new_session(tmp_path, jobs(), None), ["cpu"], stop=Stop(), progress=Progress((), tmp_path, {}, "s")
    )
    (line,) = capfd.readouterr().err.splitlines()
    assert "could not be written: a file stands where a folder is needed" in line


def test_workers_that_end_at_the_time_limit_did_not_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may notice it, and be gone, while the process that started them waits for one of them."""

    class Timed:
        exitcode = 0

        def join(self, seconds: float | None = None) -> None:
            time.sleep(0.1)

        def is_alive(self) -> bool:
            return False

    monkeypatch.setattr("intnacl.paper.workers._start", lambda *_: Timed())
    plan, stop = jobs(), Stop(0.05 / 60)
    run_local(new_session(tmp_path, plan, 0), ["cpu"], stop=stop, progress=Progress(plan, tmp_path, {}, "s"))
    assert stop.reason == "time"


def test_every_device_has_a_worker_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[str, int]] = []

    class Done:
        exitcode = 0

        def join(self, seconds: float | None = None) -> None: ...
        def is_alive(self) -> bool:
            return False

    def start(session: object, device: str, workers: int) -> Done:
        begun.append((device, workers))
        return Done()

    monkeypatch.setattr("intnacl.paper.workers._start", start)
    session = new_session(tmp_path, jobs(), None)
    run_local(session, ["cuda:0", "cuda:1"], stop=Stop(), progress=Progress((), tmp_path, {}, "s"))
    assert begun == [("cuda:0", 2), ("cuda:1", 2)]


@pytest.mark.parametrize(
    ("device", "workers", "devices"),
    [("cpu", None, ["cpu"]), ("cpu", 3, ["cpu"] * 3), ("cuda:1", None, ["cuda:1"])],
)
def test_devices_of_workers(
    monkeypatch: pytest.MonkeyPatch, device: str, workers: int | None, devices: list[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert local_devices(device, workers) == devices


@pytest.mark.parametrize(
    ("device", "workers", "message"),
    [
        ("cpu", -1, "workers=-1 must be a whole number from 0 to 1,024"),
        ("cpu", 2**64, f"workers={2**64} must be a whole number from 0 to 1,024"),
        ("gpu", None, "device='gpu' is unknown: take auto, cpu"),
        ("cuda:2", None, "device='cuda:2': this machine has 2 GPUs"),
    ],
)
def test_impossible_workers_are_refused(
    monkeypatch: pytest.MonkeyPatch, device: str, workers: int | None, message: str
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(InputError, match=message):
        local_devices(device, workers)


def test_every_gpu_has_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert local_devices("auto", None) == ["cuda:0", "cuda:1"]
    assert local_devices("cuda", 3) == ["cuda:0", "cuda:1", "cuda:0"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(InputError, match="no GPU that torch can use"):
        local_devices("cuda", None)


def test_workers_share_the_threads_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)  # of the machine, most of it not ours
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    assert [threads_of(workers) for workers in (1, 3, 16)] == [8, 2, 1]


def test_two_processes_share_the_work(tmp_path: Path) -> None:
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
def test_two_workers_do_everything(tmp_path: Path) -> None:
    grid = grid_file(tmp_path / "grid.toml")
    subprocess.run(command(grid, tmp_path / "a", "--workers", "2"), check=True, timeout=600)
    subprocess.run(command(grid, tmp_path / "b", "--workers", "0"), check=True, timeout=600)
    assert len(figures(tmp_path / "a")) == 4
    assert {name: found[0] for name, found in figures(tmp_path / "a").items()} == {
        name: found[0] for name, found in figures(tmp_path / "b").items()
    }


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_kills_end_in_the_same_results(tmp_path: Path) -> None:
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
    subprocess.run(command(grid, killed, "--workers", "1"), check=True, timeout=600)
    assert figures(killed) == figures(straight)
    assert len(figures(straight)) == 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    grid = grid_file(tmp_path / "grid.toml")
    process = subprocess.Popen(
        command(grid, tmp_path / "out", "--workers", "1"), stdout=subprocess.PIPE, text=True
    )
    worker, deadline = None, time.monotonic() + 120
    while worker is None and time.monotonic() < deadline:
        worker = next((_pid(path) for path in tmp_path.glob("out/runs/*/lock") if path.stat().st_size), None)
        time.sleep(0.05)
    assert worker not in (None, process.pid)
    assert worker is not None
    os.kill(worker, signal.SIGKILL)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    assert "4 of 4 runs are finished" in said


def _pid(path: Path) -> int | None:
    try:
        return int(json.loads(path.read_text())["pid"])
    except (ValueError, KeyError):
        return None


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sigterm_saves_and_stops(tmp_path: Path) -> None:
    grid = grid_file(tmp_path / "grid.toml")
    grid.write_text(grid.read_text().replace('"train.epochs" = 2', '"train.epochs" = 400'))
    process = subprocess.Popen(
        command(grid, tmp_path / "out", "--workers", "1"), stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    long = tmp_path / "out" / "runs"
    while not list(long.glob("*400epochs*/log.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.terminate()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    assert "stopped (terminate); the same command goes on." in said
    assert list(long.glob("*400epochs*/checkpoints/step-*"))
