"""Executors, which attempt runs in this process, in processes on this machine, or as tasks of a Ray cluster.

To use Ray, start it on the machines (`ray start --head`, then `ray start --address HEAD:6379`), and give its
address. A task whose worker or machine dies is restarted elsewhere and resumes from the run's last state.
"""

import logging
import multiprocessing
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from intnacl.errors import InputError, check_count, missing_extra
from intnacl.paper.attempts import Outcome
from intnacl.paper.plan import Job
from intnacl.paper.session import MOST_FAILURES, Session
from intnacl.training.ranks import read_device
from intnacl.training.stop import Stop

MOST_WORKERS = 1024


class InProcess:
    """Executor of one run at a time in this process."""

    def __init__(self, session: Session, device: str, stop: Stop) -> None:
        self._session, self._device, self._stop = session, device, stop
        self._next: list[Job] = []

    def has_room(self) -> bool:
        """True between attempts."""
        return not self._next

    def submit(self, job: Job) -> None:
        """Attempt the run at the next `poll`."""
        self._next.append(job)

    def poll(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """Attempt the run, however long it takes."""
        job = self._next.pop()
        return [(job, self._session.attempt(job, self._device, self._stop))]

    def cancel(self) -> None:
        """Do nothing, because no attempt runs between calls."""


@dataclass
class _Worker:
    """A process that attempts runs on one device, one after another."""

    device: str
    process: BaseProcess
    connection: Connection
    deaths: int
    """Deaths of workers on this device in a row, without an attempt that ended."""


class Processes:
    """Executor of runs in worker processes, one for each device.

    A worker that dies is replaced, unless workers keep dying without an attempt that ends. A worker that was
    told to stop from outside is not replaced.
    """

    def __init__(self, session: Session, devices: Sequence[str], *, start_method: str = "spawn") -> None:
        self._session, self._threads = session, threads_of(len(devices))
        self._context = multiprocessing.get_context(start_method)
        self._idle = [self._start(device) for device in devices]
        self._busy: dict[Connection, tuple[_Worker, Job]] = {}

    def _start(self, device: str, deaths: int = 0) -> _Worker:
        connection, other = self._context.Pipe()
        arguments = (other, self._session, device, self._threads)
        process = self._context.Process(target=_serve, args=arguments)  # type: ignore[attr-defined]
        process.start()
        other.close()  # so that the worker's death closes the last copy of its end
        return _Worker(device, process, connection, deaths)

    def has_room(self) -> bool:
        """True if a worker waits for a run."""
        return bool(self._idle)

    def submit(self, job: Job) -> None:
        """Give the run to a worker."""
        worker = self._idle.pop(0)
        self._busy[worker.connection] = worker, job
        with suppress(OSError):  # the worker died meanwhile, which `poll` will notice
            worker.connection.send(job)

    def poll(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """Wait for an outcome, or for the death of a worker."""
        ended: list[tuple[Job, Outcome]] = []
        ready = wait(list(self._busy), seconds)
        for connection in [connection for connection in self._busy if connection in ready]:
            worker, job = self._busy.pop(connection)
            try:
                outcome: Outcome | InputError = connection.recv()
                worker.deaths = 0
            except (EOFError, OSError):
                outcome = "failed"
                worker.process.join()
                if worker.deaths + 1 < MOST_FAILURES:
                    self._idle.append(self._start(worker.device, worker.deaths + 1))
            else:
                if outcome != "stopped":
                    self._idle.append(worker)
            if isinstance(outcome, InputError):
                raise outcome
            ended.append((job, outcome))
        return ended

    def cancel(self) -> None:
        """Ask the workers to save and stop, and wait for them."""
        workers = [*self._idle, *(worker for worker, _ in self._busy.values())]
        for worker in workers:
            worker.process.terminate()
            worker.connection.close()  # ends a worker that waits for a run
        for worker in workers:
            worker.process.join()


class WorkerStop(Stop):
    """A `Stop` that is also due when the process that started the worker is gone."""

    def due(self) -> bool:
        """True if it is time to stop."""
        parent = multiprocessing.parent_process()
        if self.reason is None and parent is not None and not parent.is_alive():
            self.reason = "terminate"
        return super().due()


def _serve(connection: Connection, session: Session, device: str, threads: int) -> None:
    """Attempt the runs that come through a connection, until it is closed or it is time to stop."""
    if device == "cpu":
        torch.set_num_threads(threads)
    with WorkerStop(session.minutes_left()) as stop, suppress(EOFError, ConnectionError):
        while not stop.due():
            job = connection.recv()
            outcome: Outcome | InputError
            try:
                outcome = session.attempt(job, device, stop)
            except InputError as error:  # about the results folder; errors of a run are noted in its folder
                outcome = error
            connection.send(outcome)


class RayTasks:
    """Executor of every run as a task of a Ray cluster, each with its own GPU if they run on GPUs."""

    def __init__(self, session: Session, ray: Any, device: str) -> None:
        self._ray, self._session, self._device = ray, session, device
        options = {"max_retries": 3, "num_cpus": 1, "num_gpus": int(device.startswith("cuda"))}
        self._task = ray.remote(**options)(_task)
        self._running: dict[Any, Job] = {}

    def has_room(self) -> bool:
        """Always true: Ray queues tasks."""
        return True

    def submit(self, job: Job) -> None:
        """Queue a task."""
        self._running[self._task.remote(job, self._session, self._device)] = job

    def poll(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """Wait for a task.

        A task that Ray itself gave up has noted its tries in the run's folder: the next attempt gives up the
        run.
        """
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        ended: list[tuple[Job, Outcome]] = []
        for reference in ready:
            job = self._running.pop(reference)
            try:
                ended.append((job, self._ray.get(reference)))
            except self._ray.exceptions.RayError as error:
                print(f"{job.name}: {str(error).splitlines()[0]}", flush=True)
                ended.append((job, "failed"))
        return ended

    def cancel(self) -> None:
        """Interrupt the tasks, which save and stop, and wait up to a minute for them."""
        references = list(self._running)
        for reference in references:
            self._ray.cancel(reference)
        if references:
            self._ray.wait(references, num_returns=len(references), timeout=60)


def _task(job: Job, session: Session, device: str) -> Outcome:
    with Stop(session.minutes_left()) as stop:
        return session.attempt(job, device, stop)


def connect(address: str) -> Any:
    """Return Ray, connected to a running cluster."""
    try:
        import ray
    except ImportError:
        raise missing_extra("ray", "ray", "--ray") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise InputError(
                f"--ray {address}: no Ray cluster answers there. `ray start --head` starts one."
            ) from error
    return ray


def ray_device(ray: Any, device: str) -> str:
    """Return the device of every task: by default a GPU if the cluster has any."""
    if device != "auto":
        return device
    return "cuda" if ray.cluster_resources().get("GPU", 0) else "cpu"


def local_devices(device: str, workers: int | None) -> list[str]:
    """Return the device of each worker: by default one worker per GPU, or one on the CPU."""
    if workers is not None:
        check_count("workers", workers, 0, MOST_WORKERS)  # 0 runs in this process
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    count = torch.cuda.device_count()
    if device != "cuda":
        named = read_device(device)
        if named.type == "cuda" and named.index >= count:
            raise InputError(f"device={device!r}: this machine has {count} GPUs that torch can use.")
        return [device] * (workers or 1)
    if count == 0:
        raise InputError("device='cuda': this machine has no GPU that torch can use; use --device cpu.")
    return [f"cuda:{i % count}" for i in range(workers or count)]


def threads_of(workers: int) -> int:
    """Return the CPU threads of each worker: an equal share of torch's own number.

    Torch respects OMP_NUM_THREADS and the cores that this process may use.
    """
    return max(1, torch.get_num_threads() // workers)
