"""The cache: filled once, rebuilt when stale or damaged, never half-written, safe with many processes."""

import errno
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from intnacl.data import cache
from intnacl.data.cache import Source, cached, default_root
from intnacl.errors import InputError, InputWarning
from mistakes import must_refuse


class Filler:
    """Writes two 2×2 images of one value, and counts how often it was asked."""

    def __init__(self, value: int = 7, labels: tuple[int, ...] = (0, 1)) -> None:
        self.value, self.labels, self.calls = value, labels, 0

    def __call__(self, out: IO[bytes]) -> tuple[list[int], dict[str, str]]:
        self.calls += 1
        out.write(bytes([self.value]) * 12 * len(self.labels))
        return list(self.labels), {"bad.png": "empty"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "source").write_bytes(b"pixels")
    return tmp_path / "source"


def source(file: Path, size: int = 2) -> Source:
    return Source(
        name="folder", origin=file.parent, split="train", size=size, files=[file], classes=("a", "b")
    )


def entries(root: Path) -> list[Path]:
    return sorted(path for path in (root / "cache").iterdir() if path.is_dir())


def test_filled_once_for_each_size_then_opened(root, file):
    fill = Filler()
    for _ in range(2):
        got = cached(root, source(file), fill)
        assert got.images.shape == (2, 3, 2, 2)
        assert (got.images == 7).all()
        assert got.labels.tolist() == [0, 1]
        assert got.classes == ("a", "b")
        assert got.skipped == {"bad.png": "empty"}
        got.images.zero_()  # which never reaches the disk
        small = cached(root, source(file, 1), lambda out: (out.write(b"xyz") and [0], {}))
        assert small.images.shape == (1, 3, 1, 1)
    assert fill.calls == 1


def test_a_changed_source_other_classes_or_another_format_are_decoded_again(root, file, monkeypatch):
    """A class more in the training folder moves the labels of test images that stay as they are."""
    cached(root, source(file), Filler(1))
    before = entries(root)
    file.write_bytes(b"other pixels")
    assert (cached(root, source(file), Filler(2)).images == 2).all()
    times = file.stat().st_mtime_ns
    os.utime(file, ns=(times + 1, times + 1))
    assert (cached(root, source(file), Filler(3)).images == 3).all()
    assert len(entries(root)) == 1
    assert entries(root) != before
    other = replace(source(file), classes=("a", "b", "c"))
    assert (cached(root, other, Filler(4)).images == 4).all()
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    assert (cached(root, other, Filler(5)).images == 5).all()


def test_each_place_has_one_entry_however_its_path_is_written(root, tmp_path, monkeypatch):
    fill = Filler()
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "source").write_bytes(b"pixels")
    for name in ("here", "there", "here"):
        monkeypatch.chdir(tmp_path / name)
        cached(root, source(Path("source")), fill)
        cached(root, source(Path("source").absolute()), fill)
    assert fill.calls == 2


FACTS, WRONG = (
    {"shape": [2, 3, 2, 2], "labelled": True, "classes": ["a", "b"], "skipped": {}},
    [(0, 99), (-1, 0)],
)
DAMAGES = [
    *({"shape": shape} for shape in (2, [2, 3, 4, 1], ["2", 3, 2, 2], [-2, 3, 2, 2])),
    *({"labelled": labelled} for labelled in (False, 1)),
    *({"classes": classes} for classes in (["a"], None)),
    *({"skipped": skipped} for skipped in ([], {"x.png": 1})),
]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("images.u8", b"short"),
        *(("labels.i64", content) for content in (b"short", *(struct.pack("qq", *two) for two in WRONG))),
        *(("entry.json", content) for content in (b"{", b"[]", b"[" * 100_000)),
        *(("entry.json", json.dumps(FACTS | damage).encode()) for damage in DAMAGES),
        ("", b""),  # a file in the place of the folder
    ],
)
def test_a_damaged_entry_is_rebuilt_with_a_warning(root, file, name, content):
    cached(root, source(file), Filler())
    (entry,) = entries(root)
    if not name:
        shutil.rmtree(entry)
    (entry / name).write_bytes(content)
    fill = Filler()
    with pytest.warns(InputWarning, match=r"the cache .* is damaged and is rebuilt from"):
        got = cached(root, source(file), fill)
    assert (got.images == 7).all()
    assert got.labels.tolist() == [0, 1]
    cached(root, source(file), fill)
    assert fill.calls == 1


def test_a_failure_leaves_nothing(root, file):
    def fail(out: IO[bytes]) -> tuple[list[int], dict[str, str]]:
        out.write(b"half")
        raise InputError("cannot read x.png")

    must_refuse(cached, root, source(file), fail, "cannot read")
    with pytest.raises(InputError, match=r"no image could be decoded; the first: x\.png: empty"):
        cached(root, source(file), lambda out: ([], {"x.png": "empty"}))
    assert entries(root) == []
    assert cached(root, source(file), Filler(labels=(-1, -1))).labels is None


KILLED = """
import os, sys
from pathlib import Path
from intnacl.data.cache import Source, cached

def die(out):
    out.write(b"half"); out.flush(); os._exit(9)

file = Path(sys.argv[2])
cached(Path(sys.argv[1]), Source(name="folder", origin=file.parent, split="train", size=2, files=[file],
       classes=("a", "b")), die)
"""


def test_leftovers_of_a_killed_process_are_not_used_and_deleted(root, file):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(root), str(file)], timeout=120)
    assert killed.returncode == 9
    assert len(entries(root)) == 1  # its half-written folder
    assert (cached(root, source(file), Filler()).images == 7).all()
    assert len(entries(root)) == 1


@pytest.mark.parametrize("locks", [False, True])
def test_an_entry_that_another_process_filled_meanwhile_is_opened(root, file, monkeypatch, locks):
    flock, fill = fcntl.flock, Filler(2)

    def wait(descriptor: int, kind: int) -> None:
        if not locks:
            raise OSError(errno.ENOLCK, "No locks available")
        monkeypatch.setattr(fcntl, "flock", flock)
        cached(root, source(file), Filler(1))
        flock(descriptor, kind)

    def overtaken(out: IO[bytes]) -> tuple[list[int], dict[str, str]]:
        cached(root, source(file), Filler(1))
        return fill(out)

    monkeypatch.setattr(fcntl, "flock", wait)
    assert (cached(root, source(file), overtaken).images == 1).all()
    assert fill.calls == (not locks)
    assert len(entries(root)) == 1


def test_an_unwritable_root_falls_back_to_the_default_or_is_named(root, file, tmp_path, monkeypatch):
    fill = Filler()
    assert (cached(file, source(file), fill).images == 7).all()  # no folder can be made in a file
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: path != tmp_path / "cache")
        cached(tmp_path, source(file), fill)
    assert fill.calls == len(entries(default_root())) == 1
    shutil.rmtree(root)
    root.write_bytes(b"a file where a folder should be")
    must_refuse(cached, root, source(file), fill, rf"cannot write to {root / 'cache'}: set INTNACL_DATA")
    told = rf"cannot write to {file / 'cache'} or {root / 'cache'}: set"
    must_refuse(cached, file, source(file), fill, told)


def test_the_default_root(monkeypatch):
    monkeypatch.setenv("INTNACL_DATA", "~/images")
    assert default_root() == Path.home() / "images"
    monkeypatch.delenv("INTNACL_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if sys.platform == "linux":
        assert default_root() == Path.home() / ".cache" / "intnacl"


@pytest.mark.parametrize("skipped", [{}, {"c.png": "empty"}, {"a.png": "empty", "b.png": "empty"}])
def test_an_entry_of_other_broken_images_is_rebuilt(root, file, skipped):
    own = replace(source(file), names=("a.png", "b.png", "broken.png"))

    def fill(out: IO[bytes]) -> tuple[list[int], dict[str, str]]:
        labels, _ = Filler()(out)
        return labels, {"broken.png": "empty"}

    cached(root, own, fill)
    entry = entries(root)[0] / "entry.json"
    entry.write_text(json.dumps(json.loads(entry.read_text()) | {"skipped": skipped}))
    with pytest.warns(InputWarning, match="is damaged and is rebuilt"):
        assert cached(root, own, fill).skipped == {"broken.png": "empty"}
