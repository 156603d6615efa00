"""Parts of a result: each measurement in a file of its own below RUN/parts, done once for the same settings.

A part's name ends in a digest of its settings, which hold the encoder's checksum: what was measured with
other settings, or on another encoder, stays beside it and is never mistaken for it.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from intnacl.files import parse_json, write_json
from intnacl.runs.folder import RunFolder, digest, file_name
from intnacl.runs.surroundings import surroundings


@dataclass(frozen=True, kw_only=True)
class Part:
    """One measurement: what was asked, what came out, how long it took, and where."""

    kind: str
    settings: dict[str, Any]
    figures: dict[str, Any]
    time_s: float
    surroundings: dict[str, Any]


def measured(
    folder: RunFolder,
    kind: str,
    settings: dict[str, Any],
    device: torch.device,
    work: Callable[[], dict[str, Any]],
    *,
    again: bool = False,
    earlier: Callable[[], float] = lambda: 0.0,
) -> Part:
    """The part of these settings: read if it is there, else (or if `again`) `work()` is done and written.

    `earlier()` are the seconds, none by default, that calls which did not come to their end spent on it.
    """
    found = read_part(folder, kind, settings)
    if found is not None and not again:
        return found
    begun = time.monotonic()
    figures = work()
    seconds = round(time.monotonic() - begun + earlier(), 3)
    part = Part(
        kind=kind, settings=plain(settings), figures=figures, time_s=seconds,
        surroundings=surroundings(device),
    )  # fmt: skip
    write_json(part_path(folder, kind, settings), vars(part))
    return part


def read_part(folder: RunFolder, kind: str, settings: dict[str, Any]) -> Part | None:
    """The part of these settings, if it is there and whole."""
    return _read(part_path(folder, kind, settings))


def all_parts(folder: RunFolder, kind: str) -> Iterator[Part]:
    """Every whole part of a kind, in the order in which they were written."""
    paths = (folder.measurements).glob(f"{kind}-*.json")
    for path in sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name)):
        part = _read(path)
        if part is not None:
            yield part


def part_path(folder: RunFolder, kind: str, settings: dict[str, Any]) -> Path:
    """RUN/parts/KIND-DATASET-DIGEST.json."""
    return folder.measurements / f"{kind}-{file_name(settings['dataset'])}-{digest(settings)}.json"


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as they come back from JSON, which knows no tuples."""
    found: dict[str, Any] = json.loads(json.dumps(settings))
    return found


def _read(path: Path) -> Part | None:
    """A part, or None where there is none or only a damaged one, which is then measured again."""
    try:
        return Part(**parse_json(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
