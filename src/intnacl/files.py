"""Atomic writes of files and folders, and locks between processes.

Content is written under a temporary name, synced to the disk and then renamed, so no reader ever sees half a
file. This needs no locks: they keep two processes from doing the same work.
"""

import errno
import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from io import BufferedReader
from pathlib import Path
from types import UnionType
from typing import IO, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from filelock import FileLock, Timeout

from intnacl.errors import InputError

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)  # raised by file systems without locks, as some network ones are
MAX_DEPTH = 64  # of nesting in JSON and TOML: our files have less, and Python's stack is limited


@contextmanager
def lock(path: Path, *, timeout: float = -1) -> Iterator[Literal["held", "busy", "unsupported"]]:
    """Hold a lock on a file until the block or the process ends, and yield the lock's state.

    The file is created if it is missing, and may be left behind. The state is "busy" if another process still
    holds the lock after `timeout` seconds (by default this waits for ever), and "unsupported" if the file
    system has no locks.
    """
    held = FileLock(path, timeout=timeout)
    try:
        held.acquire()
    except Timeout:
        yield "busy"
        return
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        yield "unsupported"
        return
    try:
        yield "held"
    finally:
        held.release()


def check_file(path: Path) -> None:
    """Raise unless `path` is a regular file, or a link to one: reading a pipe could block for ever."""
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "not a regular file but a pipe or a device"
        if path.is_symlink() and not path.exists():
            kind = "a broken link"
        elif not path.exists():
            raise InputError(f"{path.absolute()} does not exist.")
        raise InputError(f"{path.absolute()} is {kind}: give a file.")


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading; raise OSError for anything else: a pipe could block for ever."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.open("rb")


def read_file(path: Path) -> bytes:
    """Return the content of a regular file; raise OSError for anything else."""
    with open_file(path) as file:
        return file.read()


def as_path(argument: str, value: object) -> Path:
    """Return a caller's argument as a path, which need not exist; raise if it cannot be a path."""
    try:
        path = Path(value)  # type: ignore[arg-type]
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (TypeError, ValueError, OSError) as error:
        raise InputError(
            f"{argument}={value!r} is not a path ({error}): give the path of a file or folder."
        ) from error
    return path


def parse_json(content: str | bytes) -> Any:
    """Return the value of a JSON text; raise ValueError if it is invalid or nested too deeply."""
    with _limited_depth():
        value = json.loads(content)
        _check_depth(value)
        return value


def parse_toml(content: str) -> dict[str, Any]:
    """Return the value of a TOML text; raise ValueError if it is invalid or nested too deeply."""
    with _limited_depth():
        value = tomllib.loads(content)
        _check_depth(value)
        return value


def fits(value: Any, kind: Any) -> bool:
    """True if a value from JSON has a type: plain, a list or dict, a TypedDict, a dataclass, or a union.

    An int also passes as a float. A TypedDict may have keys besides its own. A dataclass is a dict of its
    fields, where fields with a default may be missing; a tuple is a list.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind in (Any, object):
        return True
    if is_typeddict(kind) or is_dataclass(kind):
        hints, needed = _keys(kind)
        whole = isinstance(value, dict) and needed <= value.keys()
        return whole and all(fits(value[key], hint) for key, hint in hints.items() if key in value)
    if origin in (UnionType, Union):
        return any(fits(value, one) for one in inner)
    if origin is list:
        return isinstance(value, list) and all(fits(one, inner[0]) for one in value)
    if origin is tuple:
        return isinstance(value, list) and len(value) == len(inner) and all(map(fits, value, inner))
    if origin in (dict, Mapping):
        return isinstance(value, dict) and all(fits(one, inner[1]) for one in value.values())
    if origin is Literal:
        return value in inner
    return type(value) in ((int, float) if kind is float else (kind,))


@cache
def _keys(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the keys of a TypedDict or dataclass with their types, and the required ones."""
    hints = get_type_hints(kind)
    if is_typeddict(kind):
        return hints, kind.__required_keys__
    named = {one.name: one.default is one.default_factory is MISSING for one in fields(kind)}
    return {name: hints[name] for name in named}, frozenset(name for name in named if named[name])


def read_json(path: Path, kind: Any) -> Any:
    """Return the value in a JSON file; None if it is missing, damaged, or not of type `kind`."""
    try:
        value = parse_json(read_file(path))
    except (OSError, ValueError):
        return None
    return value if fits(value, kind) else None


@contextmanager
def _limited_depth() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None


def _check_depth(value: object, left: int = MAX_DEPTH) -> None:
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
            f"{path} could not be written: a file is where a folder is needed. Move it, or choose "
            "another place with --out."
        ) from error
    except Exception as error:
        from safetensors import SafetensorError  # imported here: making views needs only torch

        if not isinstance(error, OSError | SafetensorError):
            raise
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InputError(
            f"{path} could not be written: {reason}. Whatever was saved before is intact: make room or fix "
            "the permissions, and run the same command again."
        ) from error


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents; an error names it."""
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def write_file(path: Path, content: bytes) -> None:
    """Write a file as `new_file` does, and create its missing parents; an error names it.

    A file that already has this content is left alone, so it may be on a read-only disk.
    """
    try:
        if path.stat().st_size == len(content) and read_file(path) == content:
            return
    except OSError:
        pass  # missing or unreadable: it is written below
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as handle:
            handle.write(content)


def write_text(path: Path, content: str) -> None:
    """Write text as `write_file` does; lone surrogates, which odd file names contain, are escaped."""
    write_file(path, content.encode("utf-8", "backslashreplace"))


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a JSON file as `write_file` does, with each list of numbers on one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False)  # strings in it have no line breaks
    write_text(path, re.sub(r"\[\n([-+.\w\s,]*)\]", lambda found: f"[{' '.join(found[1].split())}]", text))


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
    """Yield an empty folder that becomes `path` when the block succeeds, unless `path` exists by then."""
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
    """Sync a folder to the disk, so that a rename in it survives a power failure."""
    if os.name == "posix":  # elsewhere folders cannot be opened
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
