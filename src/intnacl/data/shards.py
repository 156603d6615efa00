"""Encoded images read from the disk: parts of shards, which stay open, and whole files."""

import os
from functools import lru_cache
from pathlib import Path

from intnacl.errors import InputError

OPEN = 128  # shards that a process keeps open


class Shard:
    """A shard that is open; it closes when nobody needs it any more."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self._descriptor = path, -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise InputError(
                f"shard {path} cannot be read any more ({error.strerror}): bring it back, and run the same "
                "command again."
            ) from error
        if os.fstat(self._descriptor).st_size != size:
            raise _changed(path)

    def read(self, offset: int, length: int) -> bytes:
        """Return a part of it; several threads may do so at once."""
        try:
            data = os.pread(self._descriptor, length, offset)
        except OSError as error:
            raise InputError(f"shard {self.path} cannot be read any more ({error.strerror}).") from error
        if len(data) != length:
            raise _changed(self.path)
        return data

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


open_shard = lru_cache(maxsize=OPEN)(Shard)


def read_whole(path: str, length: int) -> bytes:
    """Return the content of a file that has this length."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # which does not wait for a pipe
        try:
            data = os.read(descriptor, length + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read any more ({error.strerror}): bring it back, and run the same command "
            "again."
        ) from error
    if len(data) != length:
        raise _changed(path)
    return data


def _changed(path: Path | str) -> InputError:
    return InputError(
        f"{path} has changed since its images were indexed: a run needs the data that it began with. Bring "
        "it back, or begin anew with another --out."
    )
