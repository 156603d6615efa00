"""One worker a run: an exclusive lock that the system gives back when its holder ends, however it ends."""

import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from intnacl.data.aside import take_lock
from intnacl.errors import InputWarning

NAME = "lock"


@contextmanager
def hold(folder: Path) -> Iterator[bool]:
    """Take the lock of a run folder, made where it is missing; gives whether it was free."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / NAME).open("a+") as handle:
        mine = _take(handle, exclusive=True)
        if mine:
            _sign(handle)
        yield mine
        if mine:
            handle.truncate(0)  # closing the file gives the lock back


def holder(folder: Path) -> dict[str, Any] | None:
    """Who holds a run: host, pid and since when (seconds since 1970); None where nobody does."""
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


def _sign(handle: IO[str]) -> None:
    handle.truncate(0)
    handle.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": time.time()}))
    handle.flush()
