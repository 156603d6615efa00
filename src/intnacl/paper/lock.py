"""One worker a run: an exclusive lock that the system gives back when its holder ends, however it ends."""

import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from intnacl.errors import InputWarning
from intnacl.files import disk_errors, take_lock

NAME = "lock"


@contextmanager
def hold(folder: Path, device: str) -> Iterator[bool]:
    """Take the lock of a run folder, made where it is missing; gives whether it was free.

    `device` is where its holder will do the run, for others to know.
    """
    path = folder / NAME
    with ExitStack() as stack:
        with disk_errors(path):
            folder.mkdir(parents=True, exist_ok=True)
            handle = stack.enter_context(path.open("a+"))
            mine = _take(handle, exclusive=True)
            if mine:
                _sign(handle, device)
        yield mine
        if mine:
            handle.truncate(0)  # closing the file gives the lock back


def holder(folder: Path) -> dict[str, Any] | None:
    """Who holds a run: host, device, pid and since when (seconds since 1970); None where nobody does."""
    try:
        with (folder / NAME).open() as handle:
            if _take(handle, exclusive=False):
                return None
            return dict(json.loads(handle.read() or "{}"))
    except (OSError, ValueError):
        return None


def _take(handle: IO[str], *, exclusive: bool) -> bool:
    free = take_lock(handle, exclusive=exclusive, wait=False)
    if free is None:
        warnings.warn("no locks on this system: start one process at a time.", InputWarning, stacklevel=3)
    return free is not False


def _sign(handle: IO[str], device: str) -> None:
    handle.truncate(0)
    who = {"host": socket.gethostname(), "device": device, "pid": os.getpid(), "since": time.time()}
    text = json.dumps(who).encode()
    os.write(handle.fileno(), text)  # at once: on a full disk a buffer would fail again when closed
