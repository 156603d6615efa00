"""Files that appear complete or not at all, and locks between processes.

Whatever is written goes to a temporary name first, is synced to the disk, and is then renamed: no reader ever
sees half a file. That alone keeps files safe. A lock also keeps other processes from doing the same work.
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

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)  # from some network file systems
DEEPEST = 64  # levels of a JSON or TOML file; no file of ours has more, and Python's stack is limited


@contextmanager
def lock(path: Path, *, timeout: float = -1) -> Iterator[Literal["held", "busy", "unsupported"]]:
    """Hold a file against other processes until the block ends, or the process does in whatever way.

    The file is made where it is missing, and may stay. The state is "busy" where another process holds it for
    `timeout` seconds (without one, this waits for ever); "unsupported" where the file system has no locks.
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
    """Raise unless `path` is a regular file, or a link to one: reading a pipe could wait for ever."""
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file, but a pipe or a device"
        if path.is_symlink() and not path.exists():
            kind = "a broken link"
        elif not path.exists():
            raise InputError(f"{path.absolute()} does not exist.")
        raise InputError(f"{path.absolute()} is {kind}: give a file.")


def open_file(path: Path) -> BufferedReader:
    """Open a regular file to be read; for all else raise OSError, as a pipe may never begin or end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return path.open("rb")


def read_file(path: Path) -> bytes:
    """Return the content of a regular file; for all else raise OSError."""
    with open_file(path) as file:
        return file.read()


def as_path(argument: str, value: object) -> Path:
    """Return a caller's argument as a path, of a file that may be missing; raise if it cannot be any."""
    try:
        path = Path(value)  # type: ignore[arg-type]
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (TypeError, ValueError, OSError) as error:
        raise InputError(
            f"{argument}={value!r} is no path ({error}): give that of a file or folder."
        ) from error
    return path


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


def fits(value: Any, kind: Any) -> bool:
    """True if a value of JSON is of a type: plain, a list or dict, a TypedDict, a dataclass, or a union.

    An int is also a float. A TypedDict may have other keys beside its own. A dataclass is a dict of its
    fields, of which those with a default may be missing; a tuple is a list.
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
    """Return the keys of a TypedDict or dataclass with their types, and those that must be there."""
    hints = get_type_hints(kind)
    if is_typeddict(kind):
        return hints, kind.__required_keys__
    named = {one.name: one.default is one.default_factory is MISSING for one in fields(kind)}
    return {name: hints[name] for name in named}, frozenset(name for name in named if named[name])


def read_json(path: Path, kind: Any) -> Any:
    """Return what a file of JSON holds; None where it is missing or damaged, or not of the type."""
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
        if path.stat().st_size == len(content) and read_file(path) == content:
            return
    except OSError:
        pass  # it is missing or unreadable, and is written
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as handle:
            handle.write(content)


def write_text(path: Path, content: str) -> None:
    """Write text as `write_file` does; what is no character, as in odd names of files, is escaped."""
    write_file(path, content.encode("utf-8", "backslashreplace"))


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a file of JSON as `write_file` does, each list of numbers on one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False)  # in whose texts a line break is escaped
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
