"""One worker a run: an exclusive lock that the system gives back when its holder ends, however it ends."""

import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from intnacl.errors import InputWarning
from intnacl.files import Lock, disk_errors, lock

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
            held = stack.enter_context(lock(path, wait=False))
            if mine := _is_free(held):
                who = {
                    "host": socket.gethostname(),
                    "device": device,
                    "pid": os.getpid(),
                    "since": time.time(),
                }
                held.write(json.dumps(who).encode())
        yield mine
        if mine:
            held.write(b"")


def holder(folder: Path) -> dict[str, Any] | None:
    """Who holds a run: host, device, pid and since when (seconds since 1970); None where nobody does."""
    try:
        with lock(folder / NAME, shared=True, wait=False) as held:
            return None if _is_free(held) else dict(json.loads(held.read() or b"{}"))
    except (OSError, ValueError):
        return None


def _is_free(held: Lock) -> bool:
    """True unless another process holds the lock; without locks, any number of them may."""
    if held.state == "unsupported":
        warnings.warn("no locks on this system: start one process at a time.", InputWarning, stacklevel=3)
    return held.state != "busy"
