"""Decoded images on disk, memory-mapped: one folder per data set, split and size.

An entry `KEY.FINGERPRINT/` holds `images.u8` and `labels.i64` (raw) and `entry.json` (shape, classes, broken
images). The fingerprint covers names, sizes and modification times of the source files.
"""

import hashlib
import json
import math
import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
import torch
from platformdirs import user_cache_path
from torch import Tensor

from intnacl import files
from intnacl.data.images import ImageSet
from intnacl.errors import InputError, InputWarning

FORMAT = 2  # raise when decoding or layout change, so that older entries are rebuilt
Fill = Callable[[IO[bytes]], tuple[list[int], dict[str, str]]]
"""Writes pixels to the file; returns labels, and the name of each broken image -> the reason."""


def default_root() -> Path:
    """Return where data sets are kept when no root is given: $INTNACL_DATA, else the user's cache folder.

    The cache folder on Linux is ~/.cache/intnacl, or $XDG_CACHE_HOME/intnacl if that is set.
    """
    given = os.environ.get("INTNACL_DATA")
    return Path(given).expanduser() if given else user_cache_path("intnacl", appauthor=False)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of an entry: every file that it depends on, and what distinguishes it from others."""

    name: str
    origin: Path
    split: str
    size: int
    files: Sequence[Path]
    classes: tuple[str, ...]
    names: Sequence[str] = ()
    """Names of all images, broken ones too, if they are known before any is decoded."""

    @property
    def key(self) -> str:
        """Name of the entry without its fingerprint: one per data set, place, split and size."""
        place = hashlib.sha256(os.fsencode(self.origin.absolute())).hexdigest()[:8]
        return f"{self.name}-{place}-{self.split}-{self.size}"

    @property
    def fingerprint(self) -> str:
        """Digest of the classes and of every file's name, size and modification time."""
        digest = hashlib.sha256(json.dumps([FORMAT, self.classes]).encode())
        for path in self.files:
            facts = path.stat()
            digest.update(os.fsencode(path.absolute()) + f"\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:16]


def cached(root: Path, source: Source, fill: Fill) -> ImageSet:
    """Open the entry of `source`, filling it first if it is missing, stale or damaged."""
    folder = writable_folder(root)
    entry = folder / f"{source.key}.{source.fingerprint}"
    if (opened := _open(entry, source)) is None:
        with files.lock(folder / f".{source.key}.lock") as state:
            if (opened := _open(entry, source)) is None:
                if entry.exists():
                    text = f"the cache {entry} is damaged and is rebuilt from {source.origin}."
                    warnings.warn(text, InputWarning, stacklevel=2)
                # Delete stale entries and leftovers of killed processes; mapped pages stay valid.
                leftovers = folder.glob(f".{source.key}.*.*") if state == "held" else ()
                for old in (*folder.glob(f"{source.key}.*"), *leftovers):
                    shutil.rmtree(old, ignore_errors=True)
                    with suppress(OSError):  # a file or a link where a folder should be
                        old.unlink()
                _write(entry, fill, source)
                opened = _open(entry, source)
                opened = opened and replace(opened, decoded=True)
    if opened is None:
        raise InputError(f"{entry} is damaged and could not be replaced: delete it.")
    return opened


def writable_folder(root: Path) -> Path:
    """Return `root`/cache or, for data on a read-only disk, the cache folder of the default root."""
    folders = dict.fromkeys((root / "cache", default_root() / "cache"))
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise InputError(
        f"cannot write to {' or '.join(map(str, folders))}: set INTNACL_DATA to a folder you may write to."
    )


def check_labelled(labelled: int, count: int, origin: Path, split: str) -> None:
    """Raise if some of `count` images have a label and others none."""
    if 0 < labelled < count:
        raise InputError(
            f"{origin}: {labelled} of {count} images of the {split} split have a label: give all of "
            "them one, or none."
        )


def _write(entry: Path, fill: Fill, source: Source) -> None:
    with files.new_folder(entry) as folder:
        with (folder / "images.u8").open("wb") as out:
            labels, skipped = fill(out)
        if not labels:
            first = next((f"{name}: {reason}" for name, reason in skipped.items()), "there are none")
            raise InputError(f"{source.origin}: no image could be decoded; the first: {first}.")
        check_labelled(sum(label >= 0 for label in labels), len(labels), source.origin, source.split)
        np.array(labels, dtype=np.int64).tofile(folder / "labels.i64")
        shape = [len(labels), 3, source.size, source.size]
        facts = {"shape": shape, "labelled": min(labels) >= 0, "classes": source.classes, "skipped": skipped}
        (folder / "entry.json").write_text(json.dumps(facts))


def _open(entry: Path, source: Source) -> ImageSet | None:
    """Map the entry into memory; return None if it is missing or one of its files is damaged."""
    try:
        facts = files.parse_json(files.read_file(entry / "entry.json"))
        (count, *rest), labelled, skipped = facts["shape"], facts["labelled"], facts["skipped"]
        whole = type(count) is int and rest == [3, source.size, source.size] and type(labelled) is bool
        if not whole or facts["classes"] != list(source.classes):
            return None
        if not all(isinstance(reason, str) for reason in skipped.values()):
            return None
        if source.names and not (
            len(source.names) == count + len(skipped) and skipped.keys() <= set(source.names)
        ):
            return None
        images = _map(entry / "images.u8", torch.uint8, [count, *rest])
        labels = _map(entry / "labels.i64", torch.int64, [count])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    low, high = (0, len(source.classes) - 1) if labelled else (-1, -1)
    if not low <= int(labels.min()) <= int(labels.max()) <= high:
        return None
    return ImageSet(
        images=images, labels=labels if labelled else None, classes=source.classes, skipped=skipped
    )


def _map(path: Path, dtype: torch.dtype, shape: list[int]) -> Tensor:
    """Return a copy-on-write tensor over the file: pages are read when touched, and writes stay in memory."""
    count = math.prod(shape)
    if count < 1 or path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path} is damaged")
    return torch.from_file(str(path), shared=False, size=count, dtype=dtype).view(shape)
