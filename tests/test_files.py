"""Files and folders appear complete or not at all, and a lock admits one process at a time."""

import errno
import fcntl
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from intnacl import files
from intnacl.errors import InputError
from mistakes import must_refuse


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_complete_and_a_failure_keeps_the_old_one(tmp_path):
    with files.new_file(tmp_path / "a") as out:
        out.write(b"half")
        assert not (tmp_path / "a").exists()
        out.write(b" and half")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644
    with pytest.raises(TypeError), files.new_file(tmp_path / "a") as out:
        out.writelines([b"new", "not bytes"])  # type: ignore[list-item]
    assert (tmp_path / "a").read_bytes() == b"half and half"
    assert names(tmp_path) == ["a"]


def test_a_folder_appears_when_it_is_complete_and_the_first_one_stays(tmp_path):
    with pytest.raises(FileNotFoundError), files.new_folder(tmp_path / "a") as folder:
        (folder / "missing" / "x").write_bytes(b"1")
    assert names(tmp_path) == []
    with files.new_folder(tmp_path / "a") as late:
        (late / "x").write_bytes(b"late")
        with files.new_folder(tmp_path / "a") as early:
            (early / "sub").mkdir()
            (early / "sub" / "x").write_bytes(b"early")
            assert not (tmp_path / "a").exists()
    assert (tmp_path / "a" / "sub" / "x").read_bytes() == b"early"
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o755


def test_files_are_written_with_their_parent_folders(tmp_path):
    files.write_file(tmp_path / "sub" / "a", b"whole")
    assert (tmp_path / "sub" / "a").read_bytes() == b"whole"
    files.write_json(tmp_path / "new" / "b", {"ü": (1, 2)})
    assert (tmp_path / "new" / "b").read_text() == '{\n "ü": [1, 2]\n}'
    before = (tmp_path / "sub" / "a").stat()
    files.write_file(tmp_path / "sub" / "a", b"whole")  # nothing to do
    assert (tmp_path / "sub" / "a").stat().st_ino == before.st_ino


def test_errors_of_the_disk_name_the_file_and_others_pass(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/a/b could not be written: a file is where .* Move it"):
        files.write_file(tmp_path / "file" / "a" / "b", b"")
    for name in ("file", "file/below"):
        must_refuse(files.make_folder, tmp_path / name, f"{name} could not be written: a file is where")
    with (
        pytest.raises(InputError, match="x could not be written: No space left"),
        files.disk_errors(Path("x")),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(RuntimeError, match="out of memory"), files.disk_errors(Path("x")):
        raise RuntimeError("out of memory")


def test_a_lock_admits_one_holder_at_a_time(tmp_path):
    inside, most = [], []

    def work(number: int) -> None:
        with files.lock(tmp_path / "lock") as state:
            assert state == "held"
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.05)
            inside.remove(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert most == [1] * 4


def test_a_lock_is_busy_until_its_holder_releases_it(tmp_path):
    path = tmp_path / "lock"
    with files.lock(path) as first, files.lock(path, timeout=0) as second:
        assert (first, second) == ("held", "busy")
    with files.lock(path, timeout=0) as third:
        assert third == "held"


def test_missing_support_for_locks_is_reported(tmp_path, monkeypatch):
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOLCK, "refused")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with files.lock(tmp_path / "lock") as state:
        assert state == "unsupported"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and links")
@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "device", "missing"])
def test_only_regular_files_are_read(tmp_path, kind):
    path = tmp_path / "file"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)  # reading it would block forever, because no process writes to it
    elif kind != "missing":
        path.symlink_to("/dev/zero" if kind == "device" else path.name)
    with pytest.raises(OSError, match="file"):
        files.read_file(path)


class AsDict(TypedDict):
    a: int
    b: NotRequired[str]


@dataclass
class AsClass:
    a: int
    b: str = ""


@pytest.mark.parametrize(
    ("value", "kind", "fit"),
    [
        (1, float, True),
        (True, int, False),
        (None, int | None, True),
        ("c", Literal["a", "b"], False),
        ([1, "x"], list[int], False),
        ([1, 2], tuple[int, int], True),
        ([1], tuple[int, int], False),
        *(
            (value, kind, fit)
            for kind in (AsDict, AsClass)
            for value, fit in (
                ({"a": 1, "c": 2}, True),
                ({"a": 1, "b": 2}, False),
                ({"b": ""}, False),
                ([], False),
            )
        ),
        ({"a": [{"a": 1}]}, dict[str, list[AsDict]], True),
        ({"a": [{"a": None}]}, dict[str, list[AsDict]], False),
        ([], dict[str, int], False),
        ([{}], list[Any], True),
    ],
)
def test_values_fit_types(value, kind, fit):
    assert files.fits(value, kind) is fit


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((files.parse_json, text) for text in ("[" * 70 + "]" * 70, "[" * 100_000)),
        (files.parse_json, '{"a":' * 2000 + "1" + "}" * 2000),
        *((files.parse_toml, f"x = {text}") for text in ("[" * 100_000, "{a=" * 900)),
        (files.parse_toml, ".".join("a" * 3000) + " = 1"),
    ],
    ids=range(6),
)
def test_text_that_is_nested_too_deeply_is_refused_as_damaged(parse, text):
    with pytest.raises(ValueError, match="nested more than 64 levels deep"):
        parse(text)
    assert files.parse_json("[" * 60 + "]" * 60)
