"""Write aside, fsync, rename: no reader ever meets half a file, and of many processes one does the work.

The rename alone makes it safe; the lock only spares the others from doing the same work at the same time.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from intnacl.errors import InputError


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold `path` as a lock between processes; gives False where the system has none (Windows, some NFS)."""
    with path.open("a") as handle:
        yield bool(take_lock(handle))  # closing the file releases it


def take_lock(handle: IO[Any] | int, *, exclusive: bool = True, wait: bool = True) -> bool | None:
    """Lock an open file or folder against other processes until it is closed, however this one ends.

    False: another process has it; None: the system has no such locks (Windows, some NFS).
    """
    try:
        import fcntl

        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        fcntl.flock(handle, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def write_file(path: Path, content: bytes) -> None:
    """Write a file, and the folders above it, as `new_file` does; where that fails, the error names it.

    One that holds the same already is left as it is, also where nothing may be written.
    """
    if _holds(path, content):
        return
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as handle:
            handle.write(content)


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.stat().st_size == len(content) and path.read_bytes() == content
    except OSError:
        return False


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full or unwritable disk into a message that says what to do."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(
            f"{path} could not be written: a file stands where a folder is needed. Move it, or choose "
            "another place with --out."
        ) from error
    except Exception as error:
        from safetensors import SafetensorError  # here, so that views can be made with torch alone

        if not isinstance(error, OSError | SafetensorError):
            raise
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(
            f"{path} could not be written: {reason}. Whatever was saved before is whole: make room or mend "
            "the permissions and run the same command again."
        ) from error


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears as `path` when the block ends well, and leaves no trace when it does not."""
    handle = tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False)  # noqa: SIM115
    partial = Path(handle.name)
    try:
        with handle:
            yield handle.file
            sync(handle.file)
        partial.chmod(0o644)  # tempfile gives 0o600; others may read what lies in a folder they may read
        partial.replace(path)
        _sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder that becomes `path` when the block ends well; one that is there first stays."""
    partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield partial
        for file in partial.rglob("*"):
            if file.is_file():
                with file.open("rb+") as handle:
                    sync(handle)
        partial.chmod(0o755)  # mkdtemp gives 0o700; a data folder is for everyone who may read its parent
        _rename_unless_there(partial, path)
        _sync_folder(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _rename_unless_there(partial: Path, path: Path) -> None:
    try:
        partial.rename(path)
    except OSError:
        if not path.is_dir():
            raise


def _sync_folder(path: Path) -> None:
    """Push a rename through to the disk: until then, a loss of power takes it back."""
    if os.name == "posix":  # elsewhere folders cannot be opened
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync(handle: IO[bytes]) -> None:
    """Push what was written through to the disk."""
    handle.flush()
    os.fsync(handle.fileno())
