"""Workers on this machine: each takes the next run that is free, until none is left.

Workers do not talk to each other: finished, failed and running are read from the run folders, so a second
process on the same results folder shares the work, and a killed one leaves nothing to clean up.
"""

import multiprocessing
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from intnacl.errors import InputError, check_count
from intnacl.models.weights import ENCODER
from intnacl.paper.attempts import TRIES, attempt, finished, given_up, run_folder
from intnacl.paper.plan import Job
from intnacl.paper.progress import Progress
from intnacl.paper.run_names import encoder_key
from intnacl.training.ranks import read_device
from intnacl.training.stop import Stop

POLL_S = 0.5
MOST_WORKERS = 1024
HOPELESS = 2  # exit code of a worker that cannot use the results folder: another one could not either


@dataclass(frozen=True, kw_only=True)
class Session:
    """One call of the runner."""

    results: Path
    jobs: tuple[Job, ...]
    name: str
    """Failures count within a session: the next one tries again."""
    deadline: float | None = None
    """Seconds since 1970."""

    def minutes_left(self) -> float | None:
        """Until the deadline."""
        return None if self.deadline is None else max(0.0, (self.deadline - time.time()) / 60)

    def open_jobs(self) -> list[Job]:
        """Neither finished nor given up."""
        return [
            job
            for job in self.jobs
            if not finished(self.results, job.name) and not given_up(self.results, job.name, self.name)
        ]

    def free_jobs(self, left: Iterable[Job]) -> list[Job]:
        """Those that need not wait for an earlier one to train the encoder that both end with."""
        free, awaited = [], set[str]()
        for job in left:
            key = self._keys[job.name]
            if key not in awaited:
                free.append(job)
            if not (run_folder(self.results, job.name) / ENCODER).exists():
                awaited.add(key)
        return free

    @cached_property
    def _keys(self) -> dict[str, str]:
        return {job.name: encoder_key(job.config) for job in self.jobs}


def new_session(results: Path, jobs: Sequence[Job], max_minutes: float | None) -> Session:
    """Begin: failures of earlier sessions are forgotten."""
    deadline = None if max_minutes is None else time.time() + 60 * max_minutes
    return Session(
        results=results.absolute(), jobs=tuple(jobs), name=uuid.uuid4().hex[:12], deadline=deadline
    )


class WorkerStop(Stop):
    """Stops also when the process that started the worker is gone."""

    def __init__(self, max_minutes: float | None, parent: int) -> None:
        super().__init__(max_minutes)
        self._parent = parent

    def due(self) -> bool:
        """Whether to stop now."""
        if self.reason is None and os.getppid() != self._parent:
            self.reason = "terminate"
        return super().due()


def work(session: Session, device: str, *, stop: Stop, look: Callable[[], None] = lambda: None) -> None:
    """Do runs until none is left or it is time to stop; `look` is called between runs."""
    while not stop.due():
        left = session.open_jobs()
        look()
        if not left:
            return
        for job in session.free_jobs(left):
            outcome = attempt(job, session.results, device=device, stop=stop, session=session.name)
            if stop.due() or outcome in ("finished", "failed"):
                break  # look again from the top: what came free may go first
        else:
            time.sleep(POLL_S)  # others have all that is left


def run_local(session: Session, devices: Sequence[str], *, stop: Stop, progress: Progress) -> None:
    """One worker process a device; a worker that dies is replaced as long as that may help."""
    workers = {i: _start(session, device, len(devices)) for i, device in enumerate(devices)}
    deaths: list[int] = []  # runs that were open at each
    try:
        while not stop.due() and workers:  # in this order: they may be gone because the time is up
            progress.update()
            for i, worker in list(workers.items()):
                worker.join(POLL_S / len(workers))
                if worker.is_alive():
                    continue
                del workers[i]
                if worker.exitcode not in (0, HOPELESS) and not stop.due():
                    deaths.append(len(session.open_jobs()))
                    if deaths[-1] and deaths.count(deaths[-1]) <= TRIES + 1:
                        workers[i] = _start(session, devices[i], len(devices))
    finally:
        _end(list(workers.values()))
        progress.update(force=True)


def _start(session: Session, device: str, workers: int) -> BaseProcess:
    arguments = (session, device, os.getpid(), threads_of(workers))
    process = multiprocessing.get_context("spawn").Process(target=_worker, args=arguments)
    process.start()
    return process


def threads_of(workers: int) -> int:
    """Threads of each worker on the CPU: together as many as torch would take here, which heeds
    OMP_NUM_THREADS and the cores that this process may use."""
    return max(1, torch.get_num_threads() // workers)


def _worker(session: Session, device: str, parent: int, threads: int) -> None:
    if device == "cpu":
        torch.set_num_threads(threads)
    try:
        with WorkerStop(session.minutes_left(), parent) as stop:
            work(session, device, stop=stop)
    except InputError as error:  # of the results folder: those of a run are noted there
        print(f"intnacl: {error}", file=sys.stderr)
        sys.exit(HOPELESS)


def _end(workers: list[BaseProcess]) -> None:
    """Ask workers to save and stop, and wait for them."""
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()


def local_devices(device: str, workers: int | None) -> list[str]:
    """The device of each worker: every GPU has one unless told otherwise, the CPU one in all."""
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
        raise InputError("device='cuda': this machine has no GPU that torch can use; take --device cpu.")
    return [f"cuda:{i % count}" for i in range(workers or count)]
