"""The place of each encoded image of a large data set: a memory-mapped table in the cache.

An entry `index-KEY/` holds `table.bin` (one record an image), `names.bin` with `name_ends.u64`, `index.json`
and, for sources that cannot be read in parts, `packed.bin` with copies of their encoded images. It is rebuilt
when the size or modification time of a source changes.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from intnacl import files
from intnacl.console import progress
from intnacl.data.cache import check_labelled, writable_folder
from intnacl.data.images import CHUNK, Broken, Item, image_size
from intnacl.data.shards import open_shard, read_whole
from intnacl.errors import InputError

FORMAT = 1  # raise when the layout changes, so that older entries are rebuilt
RECORD = np.dtype([
    ("shard", "<u4"), ("offset", "<u8"), ("length", "<u4"), ("label", "<i4"), ("width", "<u2"),
    ("height", "<u2"),
])  # fmt: skip
HEAD = 2**14  # bytes of an image that are read first to find its size


class Place(NamedTuple):
    """The place of one encoded image, in a shard from `offset` on, and its label (-1: none)."""

    name: str
    shard: int
    offset: int
    length: int
    label: int


@dataclass(kw_only=True)
class Listing:
    """The content of an index that is to be built: images in shards, or images in separate files."""

    places: Iterable[Place]
    total: int | None
    """The number of places, if it is known before they are listed."""
    shards: Sequence[Path] = ()
    root: Path | None = None
    """The folder that names are relative to, if images are separate files rather than in shards."""
    sources: Sequence[Path] = ()
    """Files or folders whose change outdates the index; by default the shards."""


class Names(Sequence[str]):
    """The names of images, each read from the disk when it is needed."""

    def __init__(self, folder: Path, rows: npt.NDArray[np.int64] | None = None) -> None:
        self._folder, self._rows = folder, rows
        self._ends = _mapped(folder / "name_ends.u64", np.dtype("<u8"))
        self._text = _mapped(folder / "names.bin", np.dtype(np.uint8))

    def __len__(self) -> int:
        return len(self._ends if self._rows is None else self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        """Return one name, or several."""
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        row = range(len(self))[index] if self._rows is None else int(self._rows[index])
        begin = int(self._ends[row - 1]) if row else 0
        return os.fsdecode(self._text[begin : int(self._ends[row])].tobytes())

    def part(self, rows: npt.NDArray[np.int64]) -> "Names":
        """Return the names of some of these images."""
        return Names(self._folder, rows if self._rows is None else self._rows[rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class Index:
    """The encoded images of one split, open for random access by any number of processes."""

    folder: Path
    """Its entry in the cache."""
    table: npt.NDArray[Any] = field(repr=False)
    """(N,) of `RECORD`."""
    names: Names = field(repr=False)
    shards: tuple[tuple[Path, int], ...] = field(repr=False)
    """Each shard and its size."""
    root: Path | None
    skipped: dict[str, str] = field(repr=False)
    """Images whose size cannot be read: name -> reason."""
    checksum: str
    """The checksum of names, lengths, labels and the sizes of shards."""
    fresh: bool = False
    """True if it was built just now."""

    def __len__(self) -> int:
        return len(self.table)

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        """(N,), or None where no image has one."""
        labels_N = self.table["label"].astype(np.int64)
        return labels_N if len(labels_N) and labels_N[0] >= 0 else None

    def read(self, row: int) -> bytes:
        """Return an encoded image; raise InputError if its shard is missing or has changed."""
        _, offset, length, *_ = self.table[row].tolist()
        if self.root is not None:
            return read_whole(os.path.join(self.root, self.names[row]), length)  # noqa: PTH118 - much faster
        path, size = self.shards[int(self.table["shard"][row])]
        return open_shard(path, size).read(offset, length)


class Packed:
    """Copies of encoded images one after the other, for sources that cannot be read in parts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def places(self, items: Iterable[Item]) -> Iterator[Place]:
        """Append each image and yield its place."""
        offset = 0
        with self.path.open("wb", buffering=0) as out:
            for name, data, label in items:
                assert isinstance(data, bytes)
                out.write(data)
                yield Place(name, 0, offset, len(data), label)
                offset += len(data)


def indexed(
    root: Path,
    kind: str,
    origin: Path,
    split: str,
    listing: Callable[[Path], Listing],
    *,
    sources: Sequence[Path] | None = None,
) -> Index:
    """Open the index of a split, building it first if it is missing, stale or damaged.

    Args:
        root: the folder of data sets, whose cache holds the index.
        kind, origin, split: the split's kind of data set, path and name.
        listing: returns the content of a new index; called with its folder, where it may write `packed.bin`.
        sources: the files that the index must have been built from, if they are known.
    """
    folder = writable_folder(root)
    place = hashlib.sha256(os.fsencode(origin.absolute())).hexdigest()[:8]
    entry = folder / f"index-{kind}-{place}-{split}"
    if (opened := _open(entry, sources)) is None:
        with files.lock(folder / f".{entry.name}.lock"):
            if (opened := _open(entry, sources)) is None:
                shutil.rmtree(entry, ignore_errors=True)
                with files.new_folder(entry) as new:
                    _write(new, listing(new), origin, split)
                opened = _open(entry, sources, fresh=True)
    if opened is None:
        raise InputError(f"{origin} changes while it is indexed, or {entry} cannot be read: try again.")
    return opened


def _write(folder: Path, listing: Listing, origin: Path, split: str) -> None:
    """Look up the size of every image and write the entry."""
    sources = [_stamp(path) for path in listing.sources or listing.shards]
    digest = hashlib.sha256(json.dumps([size for _, size, _ in sources]).encode())
    skipped: dict[str, str] = {}
    count, end, labelled = 0, 0, 0
    with (
        (folder / "table.bin").open("wb") as table,
        (folder / "names.bin").open("wb") as texts,
        (folder / "name_ends.u64").open("wb") as ends,
        ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool,
        progress(f"indexing {split} images", listing.total) as advance,
    ):
        rest = iter(listing.places)
        while chunk := list(islice(rest, CHUNK)):
            for place, size in zip(chunk, pool.map(lambda p: _measure(listing, p), chunk), strict=True):
                if isinstance(size, Broken):
                    skipped[place.name] = size.reason
                    continue
                name = os.fsencode(place.name)
                end += len(name)
                texts.write(name)
                ends.write(np.uint64(end).tobytes())
                table.write(np.array((*place[1:], *size), RECORD).tobytes())
                digest.update(name + f"\0{place.length}\0{place.label}\n".encode())
                count, labelled = count + 1, labelled + (place.label >= 0)
            advance(len(chunk))
    if not count:
        first = next((f"{name}: {reason}" for name, reason in skipped.items()), "there are none")
        raise InputError(f"{origin}: no image could be read; the first: {first}.")
    check_labelled(labelled, count, origin, split)
    facts = {
        "format": FORMAT,
        "count": count,
        "sources": sources,
        "skipped": skipped,
        "checksum": digest.hexdigest(),
        "root": os.fsdecode(listing.root) if listing.root else None,
        "shards": [os.fsdecode(path.absolute()) for path in listing.shards],
    }
    (folder / "index.json").write_text(json.dumps(facts))


def _measure(listing: Listing, place: Place) -> tuple[int, int] | Broken:
    """Return width and height of an image, from its head if that is enough."""
    path = listing.root / place.name if listing.root else listing.shards[place.shard]
    try:
        with path.open("rb", buffering=0) as file:
            for length in dict.fromkeys((min(HEAD, place.length), place.length)):
                data = os.pread(file.fileno(), length, place.offset)
                try:
                    return _fitting(image_size(data))
                except MemoryError:
                    raise
                except Exception as error:
                    broken = Broken.because(error) if data else Broken("empty")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}.") from error
    return broken


def _fitting(size: tuple[int, int]) -> tuple[int, int]:
    if max(size) > np.iinfo(np.uint16).max:
        raise ValueError(f"is {size[0]}×{size[1]}, which is too large")
    return size


def _mapped(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Map a file into memory, as a plain array: its pages are read when they are touched."""
    return np.memmap(path, dtype, mode="r").view(np.ndarray)


def _stamp(path: Path) -> tuple[str, int, int]:
    """Return path, size (0 for a folder) and modification time."""
    facts = path.stat()
    return os.fsdecode(path.absolute()), 0 if path.is_dir() else facts.st_size, facts.st_mtime_ns


def _open(entry: Path, sources: Sequence[Path] | None, *, fresh: bool = False) -> Index | None:
    """Open an entry; return None if it is missing, damaged, or built from files that have changed."""
    try:
        facts = files.parse_json(files.read_file(entry / "index.json"))
        if (
            facts["format"] != FORMAT
            or [list(_stamp(Path(path))) for path, *_ in facts["sources"]] != facts["sources"]
        ):
            return None
        if sources is not None and [path for path, *_ in facts["sources"]] != [
            os.fsdecode(path.absolute()) for path in sources
        ]:
            return None
        table = _mapped(entry / "table.bin", RECORD)
        names = Names(entry)
        if not len(table) == len(names) == facts["count"] or not isinstance(facts["skipped"], dict):
            return None
        packed = [(entry / "packed.bin")] if (entry / "packed.bin").exists() else map(Path, facts["shards"])
        return Index(
            folder=entry,
            table=table,
            names=names,
            shards=tuple((path, path.stat().st_size) for path in packed),
            root=Path(facts["root"]) if facts["root"] else None,
            skipped=facts["skipped"],
            checksum=str(facts["checksum"]),
            fresh=fresh,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
