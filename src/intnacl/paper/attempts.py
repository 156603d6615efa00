"""One attempt at a run: take its lock, go on from its parent, run it, and note what went wrong.

All that is known about a run lies in its folder below RESULTS/runs, so any number of workers, processes and
machines may share a results folder.
"""

import json
import shutil
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from intnacl.errors import InputError
from intnacl.files import write_file
from intnacl.paper.plan import Job
from intnacl.paper.reuse import inherit, take_training
from intnacl.paper.sharing import device_name, mark_shared
from intnacl.runs.folder import RunFolder
from intnacl.training.checkpoint import saved
from intnacl.training.ranks import ranks
from intnacl.training.stop import Stop

TRIES = 3
Outcome = Literal["finished", "waiting", "busy", "stopped", "failed"]
"""Of an attempt; "waiting" is for its parent, and another process is "busy" with it."""
DIED = "the process that ran it died: killed, out of memory, or crashed"


def run_folder(results: Path, name: str) -> RunFolder:
    """Where a run lies."""
    return RunFolder(results / "runs" / name)


def finished(results: Path, name: str) -> bool:
    """True if a run has its result."""
    return run_folder(results, name).is_finished()


def failure(folder: RunFolder) -> dict[str, Any] | None:
    """What is noted about a run's failures: the last error, tries by session, sessions that gave it up."""
    try:
        noted = json.loads(folder.failure.read_bytes())
        return {
            "error": str(noted["error"]),
            "tries": dict(noted["tries"]),
            "given_up": list(noted["given_up"]),
        }
    except (OSError, ValueError, TypeError, KeyError):
        return None


def given_up(results: Path, name: str, session: str) -> bool:
    """Whether this session will not try the run again."""
    noted = failure(run_folder(results, name))
    return noted is not None and session in noted["given_up"]


def attempt(job: Job, results: Path, *, device: str, stop: Stop, session: str) -> Outcome:
    """Try a run once.

    Each session has its own tries: it tries again what earlier ones gave up, and two that share a folder
    both come to an end.
    """
    if finished(results, job.name):
        return "finished"
    if job.parent and not finished(results, job.parent):
        return "failed" if _give_up_child(job, results, session) else "waiting"
    folder = run_folder(results, job.name)
    with folder.hold(device=device_name(device)) as mine:
        if not mine:
            return "busy"
        if finished(results, job.name):  # by another worker, just now
            return "finished"
        if given_up(results, job.name, session):
            return "failed"
        return _try(job, results, folder, device, stop, session)


def _try(job: Job, results: Path, folder: RunFolder, device: str, stop: Stop, session: str) -> Outcome:
    tries = _begin(folder, session)
    if tries > TRIES:  # earlier ones ended without a word
        _note(folder, session, tries=TRIES, error=DIED, given_up=True)
        return "failed"
    try:
        with _output(folder):
            reason = _run(job, results, folder, device, stop)
    except Exception as error:
        text = str(error) if isinstance(error, InputError) else traceback.format_exc()
        hopeless = isinstance(error, InputError) or tries == TRIES
        _note(folder, session, tries=tries, error=text, given_up=hopeless)
        return "failed"
    if reason:
        _note(folder, session, tries=tries - 1)  # a stop is no failure
        return "stopped"
    _tidy(job, folder)
    return "finished"


def _run(job: Job, results: Path, folder: RunFolder, device: str, stop: Stop) -> str | None:
    from intnacl.runs import run

    with ranks(device) as here:
        config = replace(job.config, train=replace(job.config.train.on(here.device), keep=1))
        take_training(config, folder)
        mark_shared(results, folder)
        for shorter in job.shorter:  # the longest first: one with a state of its own takes no other
            inherit(run_folder(results, shorter), folder)
        return run(config, folder, here, stop)


def _tidy(job: Job, folder: RunFolder) -> None:
    """A finished run keeps its encoder; its training states only where a longer run may go on from them."""
    folder.failure.unlink(missing_ok=True)
    states = saved(folder.checkpoints)
    for state in states[:-1] if job.goes_on else states:
        shutil.rmtree(state, ignore_errors=True)


def _begin(folder: RunFolder, session: str) -> int:
    """Count a try before it begins, so that one that kills its process counts too."""
    noted = failure(folder)
    tries = 1 + (noted["tries"].get(session, 0) if noted else 0)
    _note(folder, session, tries=tries)
    return tries


def _note(
    folder: RunFolder, session: str, *, tries: int, error: str | None = None, given_up: bool = False
) -> None:
    """Write down how a session fares with a run; without a new error the last one stays."""
    noted = failure(folder) or {"error": "", "tries": {}, "given_up": []}
    noted["error"] = noted["error"] if error is None else error
    noted["tries"][session] = tries
    noted["given_up"] += [session] if given_up else []
    write_file(folder.failure, json.dumps(noted, indent=1).encode())


def _give_up_child(job: Job, results: Path, session: str) -> bool:
    """A run whose parent was given up cannot begin."""
    assert job.parent is not None
    if not given_up(results, job.parent, session):
        return False
    folder = run_folder(results, job.name)
    error = f"it goes on from {job.parent}, which failed"
    _note(folder, session, tries=0, error=error, given_up=True)
    return True


@contextmanager
def _output(folder: RunFolder) -> Iterator[None]:
    """What a run prints goes to its folder."""
    with folder.output.open("a", encoding="utf-8") as log, redirect_stdout(log), redirect_stderr(log):
        yield
