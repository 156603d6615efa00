"""`webdataset:PATH`: shards in the WebDataset convention, uncompressed tar files read by offset.

A sample is all members with the same key, which is the name up to the first dot after its last slash:
`KEY.jpg` (or `.jpeg`, `.png`, `.webp`) and, if labelled, `KEY.cls`, a number, or `KEY.json` with an entry
`label` or `cls`. PATH is a folder with shards in it or one level below, or a pattern of globs and braces such
as `train-{000..099}.tar`. Shards whose names contain the word test, val, valid or validation are for testing,
others for training. `classes.txt` beside them may hold the classes' names, one per line.
"""

import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from glob import has_magic
from itertools import product
from pathlib import Path

from intnacl import files
from intnacl.data.cache import Source, cached
from intnacl.data.images import ImageSet, Item, LoadRequest, decode_all, numbered_classes
from intnacl.data.index import Index, Listing, Place, indexed
from intnacl.data.streamed import streamed_set
from intnacl.errors import InputError

DEFAULT_SIZE = 32
IMAGES = frozenset({"jpg", "jpeg", "png", "webp"})
LABELS = ("label", "cls")  # entries of KEY.json
MOST_LABEL = 2**20  # bytes of a KEY.cls or KEY.json that is read
BLOCK = tarfile.BLOCKSIZE
TEST = re.compile(r"(?<![a-z])(test|val|valid|validation)(?![a-z])", re.IGNORECASE)
BRACES = re.compile(r"\{([^{}]*)\}")


def load_webdataset(request: LoadRequest) -> ImageSet:
    """Open the split's shards: streamed, or decoded to squares of `size` through the cache."""
    assert request.path is not None
    found = {split: find_shards(request.path, split) for split in ("train", "test")}
    if not found[request.split]:
        raise InputError(
            f"{request.path} has no {request.split} split: give a folder with train*.tar and test*.tar."
        )
    indexes = {
        split: indexed(
            request.root,
            "webdataset",
            request.path,
            split,
            lambda _, shards=shards: Listing(places=_places(shards), total=None, shards=shards),  # type: ignore[misc]
            sources=shards,
        )
        for split, shards in found.items()
        if shards
    }
    classes = _classes(request.path, indexes)
    index, size = indexes[request.split], request.size or DEFAULT_SIZE
    if request.streams(len(index), size):
        return streamed_set(index, size, classes)
    source = Source(
        name="webdataset",
        origin=request.path,
        split=request.split,
        size=size,
        files=found[request.split],
        classes=classes,
    )
    labels = index.labels
    items = (
        Item(index.names[row], index.read(row), -1 if labels is None else int(labels[row]))
        for row in range(len(index))
    )
    decoded = cached(request.root, source, lambda out: decode_all(items, len(index), out, size=size))
    names = tuple(name for name in index.names if name not in decoded.skipped)
    return ImageSet(**vars(decoded) | {"names": names, "skipped": {**index.skipped, **decoded.skipped}})


def find_shards(path: Path, split: str) -> list[Path]:
    """Return the shards of a split in the order of their names; raise if one of a range is missing."""
    if path.is_dir():
        shards = [*path.glob("*.tar"), *path.glob("*/*.tar")]
    else:
        shards = []
        for one in expand(str(path)):
            matches = sorted(Path().glob(one)) if not Path(one).is_absolute() else _absolute_glob(one)
            if not matches:
                raise InputError(f"shard {one} does not exist: restore it, or leave it out of the pattern.")
            shards += matches
    shards = sorted(dict.fromkeys(shards))
    if not shards:
        raise InputError(f"{path} holds no shards (*.tar): give another folder, or a pattern of shards.")
    for shard in shards:
        files.check_file(shard)
    above = path if path.is_dir() else Path(os.path.commonpath([shard.parent for shard in shards]))
    return [
        shard for shard in shards if bool(TEST.search(str(shard.relative_to(above)))) == (split == "test")
    ]


def _absolute_glob(pattern: str) -> list[Path]:
    path = Path(pattern)
    if not has_magic(pattern):
        return [path] if path.exists() else []
    return sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))


def expand(pattern: str) -> list[str]:
    """Expand braces as shells do: a{0..2} -> a0 a1 a2, a{08..10} -> a08 a09 a10, {a,b} -> a b."""
    pieces = BRACES.split(pattern)
    choices: list[list[str]] = []
    for place, piece in enumerate(pieces):
        if place % 2 == 0:
            choices.append([piece])
        elif limits := re.fullmatch(r"(\d+)\.\.(\d+)", piece):
            low, high = limits.groups()
            if int(high) < int(low) or int(high) - int(low) > 10**6:
                raise InputError(f"{{{piece}}} in {pattern} is not a range: give the lower number first.")
            choices.append([str(n).zfill(len(low)) for n in range(int(low), int(high) + 1)])
        else:
            choices.append(piece.split(","))
    return ["".join(some) for some in product(*choices)]


def _classes(path: Path, indexes: dict[str, Index]) -> tuple[str, ...]:
    """Return names from `classes.txt`, else numbers up to the largest label of both splits."""
    needed = (
        max((int(labels.max()) for one in indexes.values() if (labels := one.labels) is not None), default=-1)
        + 1
    )
    listed = (path if path.is_dir() else path.parent) / "classes.txt"
    if needed and listed.is_file():
        names = tuple(line.strip() for line in listed.read_text("utf-8").splitlines() if line.strip())
        if len(names) < needed:
            raise InputError(f"{listed} names {len(names)} classes, and a label is {needed - 1}.")
        return names
    return numbered_classes(needed, path)


# ---- one shard ---------------------------------------------------------------------------------------------


@dataclass
class _Sample:
    """The members of one key, as far as they have been read."""

    image: tuple[str, int, int] | None = None
    label: int | None = None
    suffixes: set[str] = field(default_factory=set)


def _places(shards: list[Path]) -> Iterator[Place]:
    for number, shard in enumerate(shards):
        for sample in _samples(shard).values():
            if sample.image is not None:
                name, offset, length = sample.image
                label = -1 if sample.label is None else sample.label
                yield Place(f"{shard.name}/{name}", number, offset, length, label)


def _samples(shard: Path) -> dict[str, _Sample]:
    """Return the samples of a shard by key, in the order of the tar."""
    samples: dict[str, _Sample] = {}
    size = shard.stat().st_size
    try:
        with shard.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if member.isdir():
                    continue
                name = _checked_name(shard, member)
                if member.offset_data + member.size > size:
                    raise _truncated(shard)
                folder, _, last = name.rpartition("/")
                stem, _, suffix = last.partition(".")
                suffix = suffix.lower()
                sample = samples.setdefault(f"{folder}/{stem}" if folder else stem, _Sample())
                if suffix in sample.suffixes:
                    raise InputError(
                        f"shard {shard} holds {name!r} twice: give every image of a shard a key of its own."
                    )
                sample.suffixes.add(suffix)
                if suffix in IMAGES:
                    if sample.image is not None:
                        raise InputError(f"shard {shard} holds two images of the key {stem!r}: {name!r}.")
                    sample.image = name, member.offset_data, member.size
                elif suffix in ("cls", "json") and member.size <= MOST_LABEL:
                    here = file.tell()
                    file.seek(member.offset_data)
                    label = _label(shard, name, file.read(member.size))
                    file.seek(here)
                    sample.label = sample.label if label is None else label
            # tarfile mistakes damage for the end, which is a block of zeros.
            file.seek(tar.offset)
            if file.read(BLOCK) != bytes(BLOCK):
                raise _truncated(shard)
    except tarfile.TarError as error:
        raise InputError(
            f"shard {shard} is damaged, or no uncompressed tar file ({error}): images of a compressed one "
            "cannot be read by themselves."
        ) from error
    return samples


def _truncated(shard: Path) -> InputError:
    return InputError(f"shard {shard} is truncated or damaged: it has no end. Copy it again.")


def _checked_name(shard: Path, member: tarfile.TarInfo) -> str:
    name = member.name.removeprefix("./")
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise InputError(f"shard {shard}: the name {member.name!r} leads out of it; make the shard again.")
    if not member.isreg() or member.issparse():
        raise InputError(f"shard {shard}: {member.name!r} is a link or a special file; make the shard again.")
    return name


def _label(shard: Path, name: str, content: bytes) -> int | None:
    """Return the label in a KEY.cls or KEY.json; None if a KEY.json has none."""
    try:
        if name.lower().endswith(".cls"):
            text: object = content.decode("ascii").strip()
        else:
            value = files.parse_json(content)
            text = (
                next((value[key] for key in LABELS if key in value), None)
                if isinstance(value, dict)
                else value
            )
        if text is None:
            return None
        if isinstance(text, bool | float) or not isinstance(text, int | str) or not 0 <= int(text) < 2**31:
            raise ValueError
        return int(text)
    except ValueError:
        raise InputError(
            f"shard {shard}: {name!r} holds no label: write a class as a number, 0, 1, 2 …, into it."
        ) from None
