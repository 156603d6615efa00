"""Reading encoded images from the disk: parts of shards, which stay open, and whole files."""

import os
from functools import lru_cache
from pathlib import Path

from intnacl.errors import InputError

OPEN = 128  # shards that a process keeps open


class Shard:
    """An open shard, which is closed when the object is deleted."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self._descriptor = path, -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(
                f"shard {path} can no longer be read ({error.strerror}): restore it, and run the command "
                "again."
            ) from error
        if os.fstat(self._descriptor).st_size != size:
            raise _changed(path)

    def read(self, offset: int, length: int) -> bytes:
        """Return some bytes of it; several threads may read at once."""
        try:
            data = os.pread(self._descriptor, length, offset)
        except OSError as error:
            raise InputError(f"shard {self.path} can no longer be read ({error.strerror}).") from error
        if len(data) != length:
            raise _changed(self.path)
        return data

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


open_shard = lru_cache(maxsize=OPEN)(Shard)


def read_whole(path: str, length: int) -> bytes:
    """Return the content of a file; raise if it does not have this length."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # does not block on a pipe
        try:
            data = os.read(descriptor, length + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(
            f"{path} can no longer be read ({error.strerror}): restore it, and run the same command again."
        ) from error
    if len(data) != length:
        raise _changed(path)
    return data


def _changed(path: Path | str) -> InputError:
    return InputError(
        f"{path} has changed since its images were indexed: a run needs the data that it began with. Restore "
        "it, or begin a new run with another --out."
    )
