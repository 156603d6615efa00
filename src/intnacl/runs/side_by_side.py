"""Runs of small networks side by side on a CPU: each in a process of its own, as many at a time as cores."""

import io
import multiprocessing
import os
import sys
import traceback
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import torch

from intnacl.console import progress, show_warnings_once
from intnacl.errors import InputError
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import RunFolder
from intnacl.runs.stages import Say, train_and_measure
from intnacl.training.ranks import Ranks
from intnacl.training.stop import Stop

Work = tuple[RunConfig, RunFolder]
POLL_S = 0.2  # between looks at the reason to stop
EPOCH = "epoch "  # the beginning of a line that the journal prints after an epoch


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def suits(runs: Mapping[str, Work], here: Ranks) -> bool:
    """True if these runs take less time side by side than in turn: a small network uses one core of a CPU."""
    alone_on_cpu = here.device.type == "cpu" and here.world == 1
    return (
        alone_on_cpu
        and min(len(runs), cores()) > 1
        and all(config.encoder.name == "small" for config, _ in runs.values())
    )


def train_and_measure_all(runs: Mapping[str, Work], stop: Stop, say: Say) -> str | None:
    """Pretrain and measure runs by label to the end (None) or until told to stop (the reason).

    What they print comes with their labels; on a terminal, a bar counts the epochs of all instead of a line
    each. Where one fails the others stop, as they do for a signal, and its error is raised.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy locks of torch's threads
    left = dict(runs)
    working: dict[Connection, tuple[str, SpawnProcess]] = {}
    on_terminal = sys.stderr.isatty()
    with progress("epochs of all runs", sum(config.train.epochs for config, _ in runs.values())) as advance:
        try:
            while working or (left and not stop.due()):
                while left and len(working) < cores() and not stop.due():
                    label = next(iter(left))
                    ours, theirs = context.Pipe()
                    process = context.Process(target=_work, args=(*left.pop(label), theirs), name=label)
                    process.start()
                    theirs.close()
                    working[ours] = label, process
                ready = wait(list(working), POLL_S)
                for ours, (label, process) in [item for item in working.items() if item[0] in ready]:
                    try:
                        kind, text = ours.recv()
                    except EOFError:
                        kind, text = "died", "its process was killed, or crashed. The same command goes on."
                    is_epoch = kind == "line" and text.startswith(EPOCH)
                    if is_epoch:
                        advance(1)
                    if kind == "line" and not (is_epoch and on_terminal):
                        say(f"{label}: {text}")
                    elif kind == "ended":
                        del working[ours]
                        process.join()
                    elif kind in ("mistake", "died"):
                        raise InputError(f"{label}: {text}")
                    elif kind == "crashed":
                        raise RuntimeError(f"{label}:\n{text}")
                if stop.due():
                    for _, process in working.values():
                        process.terminate()  # a request: it saves, and ends
        finally:
            for _, process in working.values():
                process.terminate()
            for _, process in working.values():
                process.join()
    return stop.reason


class _Lines(io.TextIOBase):
    """A stream that sends each line that is written to it."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._begun = connection, ""

    def write(self, text: str) -> int:
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            with suppress(OSError):  # nobody listens any more
                self._connection.send(("line", line))
        return len(text)


def _work(config: RunConfig, folder: RunFolder, connection: Connection) -> None:
    """Do one run, the whole work of a process; tell its lines and its end."""
    lines, here = _Lines(connection), Ranks(0, 1, torch.device("cpu"))
    with redirect_stdout(lines), redirect_stderr(lines), Stop() as stop:
        show_warnings_once()
        try:
            train_and_measure(config, folder, here, stop, print)
            told = "ended", ""
        except InputError as error:
            told = "mistake", str(error)
        except Exception:
            told = "crashed", traceback.format_exc()
    with suppress(OSError):
        connection.send(told)
