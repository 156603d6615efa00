"""One attempt at a run: lock its folder, continue from its parent, run it, and note failures.

All that is known about a run lies in its folder below RESULTS/runs, so any number of workers, processes and
machines can share a results folder. Runs that share a device with others are slowed down: they are marked,
and their minutes are not reported.
"""

import json
import shutil
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypedDict

import torch

from intnacl.errors import InputError
from intnacl.files import make_folder, parse_json, read_file, write_file
from intnacl.paper.plan import Job
from intnacl.paper.reuse import inherit, take_training
from intnacl.runs.folder import RunFolder
from intnacl.training.checkpoint import saved
from intnacl.training.ranks import ranks
from intnacl.training.stop import Stop

TRIES = 3
DIED = "the process of this run died: killed, out of memory, or crashed"
Outcome = Literal["finished", "waiting", "busy", "stopped", "failed"]
"""Outcome of an attempt: "waiting" for its parent; "busy", because another process works on it."""


class Failure(TypedDict):
    """The failures of a run, as noted in its folder."""

    error: str
    """The latest error."""
    tries: dict[str, int]
    """Number of tries by session."""
    given_up: list[str]
    """The sessions that will not try the run again."""


def run_folder(results: Path, name: str) -> RunFolder:
    """Return the folder of a run."""
    return RunFolder(results / "runs" / name)


def finished(results: Path, name: str) -> bool:
    """Return True if a run has its result."""
    return run_folder(results, name).is_finished()


def failure(folder: RunFolder) -> Failure | None:
    """Return the note about a run's failures; None if there is none, or if it is damaged."""
    try:
        noted = parse_json(read_file(folder.failure))
        return Failure(
            error=str(noted["error"]), tries=dict(noted["tries"]), given_up=list(noted["given_up"])
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def given_up(results: Path, name: str, session: str) -> bool:
    """Return True if this session will not try the run again."""
    noted = failure(run_folder(results, name))
    return noted is not None and session in noted["given_up"]


def attempt(job: Job, results: Path, *, device: str, stop: Stop, session: str) -> Outcome:
    """Try a run once.

    Tries count per session: a session retries runs that earlier ones gave up, and two sessions that share a
    folder both come to an end.
    """
    from intnacl.runs.stages import train_and_measure

    folder = run_folder(results, job.name)
    if folder.is_finished():
        return "finished"
    if job.parent and not finished(results, job.parent):
        if not given_up(results, job.parent, session):
            return "waiting"
        make_folder(folder.path)
        error = f"it continues {job.parent}, which failed"
        _note(folder, session, tries=0, error=error, given_up=True)
        return "failed"
    with folder.hold(device=device_name(device)) as mine:
        if not mine:
            return "busy"
        if folder.is_finished():  # another worker has finished it meanwhile
            return "finished"
        if given_up(results, job.name, session):
            return "failed"
        noted = failure(folder)
        tries = 1 + (noted["tries"].get(session, 0) if noted else 0)
        if tries > TRIES:  # earlier tries ended without an error message
            _note(folder, session, tries=TRIES, error=DIED, given_up=True)
            return "failed"
        _note(folder, session, tries=tries)  # before the run: a try that kills its process counts too
        try:
            with (
                folder.output.open("a", encoding="utf-8") as log,
                redirect_stdout(log),
                redirect_stderr(log),
                ranks(device) as here,
            ):
                config = replace(job.config, train=replace(job.config.train.on(here.device), keep=1))
                take_training(config, folder)
                mark_shared(results, folder)
                for shorter in job.shorter:  # the longest first, because a run with a state inherits no other
                    inherit(run_folder(results, shorter), folder)
                reason = train_and_measure(config, folder, here, stop)
        except Exception as error:
            mistake = isinstance(error, InputError)
            text = str(error) if mistake else traceback.format_exc()
            _note(folder, session, tries=tries, error=text, given_up=mistake or tries == TRIES)
            return "failed"
        if reason:
            _note(folder, session, tries=tries - 1)  # a stop is not a failure
            return "stopped"
        folder.failure.unlink(missing_ok=True)
        states = saved(folder.checkpoints)  # the last one stays if a longer run may continue from it
        for state in states[:-1] if job.goes_on else states:
            shutil.rmtree(state, ignore_errors=True)
        return "finished"


def _note(
    folder: RunFolder, session: str, *, tries: int, error: str | None = None, given_up: bool = False
) -> None:
    """Note a session's tries at a run; without a new error, the latest one stays."""
    noted = failure(folder) or Failure(error="", tries={}, given_up=[])
    noted["error"] = noted["error"] if error is None else error
    noted["tries"][session] = tries
    noted["given_up"] += [session] if given_up else []
    write_file(folder.failure, json.dumps(noted, indent=1).encode())


def device_name(device: str) -> str:
    """Return a name for a device that all workers of a host agree on: a GPU's UUID."""
    named = torch.device(device)
    if named.type != "cuda" or (named.index or 0) >= torch.cuda.device_count():  # the run reports the error
        return device
    return str(torch.cuda.get_device_properties(named).uuid)


def mark_shared(results: Path, folder: RunFolder) -> None:
    """Mark a run that has just started, and all other runs on its device, as shared, if there are others.

    Of two workers that start at the same time, both lock their folders before either looks for the other. A
    run that is trained already, and is only being measured, keeps its minutes.
    """

    def place(run: RunFolder) -> tuple[str, str] | None:
        """Return host and device if a worker is at work; locks of earlier versions name no device."""
        who = run.holder() or {}
        return (who["host"], who["device"]) if {"host", "device"} <= who.keys() else None

    mine = place(folder)
    runs = [RunFolder(path) for path in (results / "runs").iterdir() if path != folder.path]
    others = [run for run in runs if mine and place(run) == mine]
    for run in [folder, *others] if others else []:
        if not run.encoder.exists():
            run.mark_shared()
