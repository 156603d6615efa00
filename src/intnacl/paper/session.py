"""A session: one call of `intnacl reproduce`, and the loop that submits its runs to an executor.

All that is known about a run lies in its folder, so a second command on the same results folder shares the
work, and a killed command leaves nothing to clean up.
"""

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from intnacl.paper.attempts import TRIES, Outcome, attempt, finished, given_up, run_folder
from intnacl.paper.plan import Job
from intnacl.paper.progress import Progress
from intnacl.paper.run_names import encoder_key
from intnacl.training.stop import Stop

POLL_S = 0.5
MOST_FAILURES = (
    TRIES + 2
)  # failures without a note of a run, and deaths in a row of a worker, before giving up


@dataclass(frozen=True, kw_only=True)
class Session:
    """One call of the command."""

    results: Path
    jobs: tuple[Job, ...]
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Failures count within a session: the next session tries again."""
    deadline: float | None = None
    """Seconds since 1970."""

    def attempt(self, job: Job, device: str, stop: Stop) -> Outcome:
        """Try one of the runs."""
        return attempt(job, self.results, device=device, stop=stop, session=self.name)

    def minutes_left(self) -> float | None:
        """Return the minutes until the deadline."""
        return None if self.deadline is None else max(0.0, (self.deadline - time.time()) / 60)

    def open_jobs(self) -> list[Job]:
        """Return the runs that are neither finished nor given up."""
        return [
            job
            for job in self.jobs
            if not finished(self.results, job.name) and not given_up(self.results, job.name, self.name)
        ]

    def free_jobs(self, left: Iterable[Job]) -> list[Job]:
        """Return the runs that can start now; of several runs with the same untrained encoder, the first."""
        free, awaited = [], set[str]()
        for job in left:
            key = self._encoder_keys[job.name]
            if key not in awaited:
                free.append(job)
            if not run_folder(self.results, job.name).encoder.exists():
                awaited.add(key)
        return free

    @cached_property
    def _encoder_keys(self) -> dict[str, str]:
        return {job.name: encoder_key(job.config) for job in self.jobs}


def new_session(results: Path, jobs: Sequence[Job], max_minutes: float | None) -> Session:
    """Create a session that ends after `max_minutes`."""
    deadline = None if max_minutes is None else time.time() + 60 * max_minutes
    return Session(results=results.absolute(), jobs=tuple(jobs), deadline=deadline)


class Executor(Protocol):
    """The interface of executors, which attempt runs."""

    def has_room(self) -> bool:
        """True if another run may be submitted now."""

    def submit(self, job: Job) -> None:
        """Start an attempt at a run."""

    def poll(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """Wait at most `seconds` for an attempt to end; return the attempts that ended.

        Raise InputError if the results folder cannot be used.
        """

    def cancel(self) -> None:
        """Ask all attempts to save and stop, and wait for them."""


def run_all(session: Session, executor: Executor, *, stop: Stop, progress: Progress) -> None:
    """Execute runs until none is left, no worker can execute the rest, or it is time to stop.

    Failures are noted in the run's folder, where a run is given up after three tries. A run that keeps
    failing without a note, because its machine cannot write there or its worker is killed, is given up here.
    """
    running: set[str] = set()
    failures: Counter[str] = Counter()
    try:
        while not stop.due():
            progress.update()
            left = session.open_jobs()
            names = {job.name for job in left}
            left = [job for job in left if failures[job.name] < MOST_FAILURES]
            free = [job for job in session.free_jobs(left) if job.parent not in names]
            for job in free:
                if not executor.has_room():
                    break
                if job.name not in running and run_folder(session.results, job.name).holder() is None:
                    executor.submit(job)
                    running.add(job.name)
            if running:
                for job, outcome in executor.poll(POLL_S):
                    running.remove(job.name)
                    failures[job.name] += outcome == "failed"
            elif free and executor.has_room():
                time.sleep(POLL_S)  # other processes work on all free runs
            else:
                return
    finally:
        executor.cancel()
        progress.update(force=True)
