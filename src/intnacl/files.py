"""Files that appear complete or not at all, and locks between processes.

Whatever is written goes to a temporary name first, is synced to the disk, and is then renamed: no reader ever
sees half a file. That alone keeps files safe. A lock also keeps other processes from doing the same work.
"""

import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from intnacl.errors import InputError

DEEPEST = 64  # levels of a JSON or TOML file; no file of ours has more, and Python's stack is limited


@dataclass(frozen=True)
class Lock:
    """An attempt to lock a file or folder against other processes, made by `lock`.

    The state is "held" by this process; "busy", where another one holds it; or "unsupported", where the file
    system has no such locks (Windows, some NFS) or the folder cannot be opened.
    """

    state: Literal["held", "busy", "unsupported"]
    descriptor: int

    def write(self, content: bytes) -> None:
        """Replace the content of the locked file, for other processes to read."""
        os.ftruncate(self.descriptor, 0)
        os.write(self.descriptor, content)  # unbuffered: on a full disk, a buffer would fail again on close

    def read(self) -> bytes:
        """The content of the locked file."""
        return os.read(self.descriptor, os.fstat(self.descriptor).st_size)


@contextmanager
def lock(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[Lock]:
    """Hold a file or folder against other processes until the block ends or the process does.

    Args:
        path: a folder, or a file, which is made where it is missing unless `shared`.
        shared: take a lock that other shared ones may stand beside; the file is only read.
        wait: wait until the lock is free; without it, the state may be "busy".
    """
    descriptor = -1
    try:
        read_only = shared or path.is_dir()
        flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT | os.O_APPEND
        descriptor = os.open(path, flags, 0o666)
    except OSError:  # Windows opens no folders, and one may be unreadable
        if not path.is_dir():
            raise
    try:
        yield Lock("unsupported" if descriptor < 0 else _flock(descriptor, shared, wait), descriptor)
    finally:
        if descriptor >= 0:
            os.close(descriptor)  # which releases the lock


def _flock(descriptor: int, shared: bool, wait: bool) -> Literal["held", "busy", "unsupported"]:
    try:
        import fcntl

        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return "busy"
    except (ImportError, OSError):
        return "unsupported"
    return "held"


def check_file(path: Path) -> None:
    """Raise unless `path` is a regular file, or a link to one: reading a pipe could wait for ever."""
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file, but a pipe or a device"
        if path.is_symlink() and not path.exists():
            kind = "a broken link"
        elif not path.exists():
            raise InputError(f"{path.absolute()} does not exist.")
        raise InputError(f"{path.absolute()} is {kind}: give a file.")


def parse_json(content: str | bytes) -> Any:
    """Return what a JSON text holds; raise ValueError where it is none, or nested too deeply."""
    with _limited_depth():
        value = json.loads(content)
        _check_depth(value)
        return value


def parse_toml(content: str) -> dict[str, Any]:
    """Return what a TOML text holds; raise ValueError where it is none, or nested too deeply."""
    with _limited_depth():
        value = tomllib.loads(content)
        _check_depth(value)
        return value


@contextmanager
def _limited_depth() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise ValueError(f"nested more than {DEEPEST} levels deep") from None


def _check_depth(value: object, left: int = DEEPEST) -> None:
    if left == 0:
        raise RecursionError
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(inner, left - 1)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the error of a full or unwritable disk into an InputError that names `path` and the remedy."""
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
            f"{path} could not be written: {reason}. Whatever was saved before is intact: make room or fix "
            "the permissions, and run the same command again."
        ) from error


def make_folder(path: Path) -> None:
    """Make a folder and those above it where they are missing; an error names it."""
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def write_file(path: Path, content: bytes) -> None:
    """Write a file, and the folders above it, as `new_file` does; an error names it.

    A file that has this content already is left alone, so that it may lie where nothing can be written.
    """
    try:
        if path.stat().st_size == len(content) and path.read_bytes() == content:
            return
    except OSError:
        pass  # it is missing or unreadable, and is written
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as handle:
            handle.write(content)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a file of JSON as `write_file` does."""
    write_file(path, json.dumps(content, indent=1, ensure_ascii=False).encode())


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that appears as `path` when the block succeeds, and leaves no trace when it fails."""
    handle = tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False)  # noqa: SIM115
    partial = Path(handle.name)
    try:
        with handle:
            yield handle.file
            handle.flush()
            os.fsync(handle.fileno())
        partial.chmod(0o644)  # tempfile gives 0o600; whoever may read the folder may read the file
        partial.replace(path)
        _sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder that becomes `path` when the block succeeds, unless `path` is a folder by then."""
    partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield partial
        for file in partial.rglob("*"):
            if file.is_file():
                with file.open("rb+") as handle:
                    os.fsync(handle.fileno())
        partial.chmod(0o755)  # mkdtemp gives 0o700; whoever may read the parent may read the folder
        try:
            partial.rename(path)
        except OSError:  # another process was first
            if not path.is_dir():
                raise
        _sync_folder(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sync_folder(path: Path) -> None:
    """Push a rename through to the disk: until then, a loss of power takes it back."""
    if os.name == "posix":  # elsewhere folders cannot be opened
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
