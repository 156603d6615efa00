"""Photographs and shards for tests of streamed data."""

import io
import json
import tarfile
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from intnacl.data.index import RECORD


@cache
def photographs() -> tuple[Image.Image, ...]:
    """Return the two photographs that ship with scikit-learn, 640×427."""
    return tuple(map(Image.fromarray, load_sample_images().images))


def photograph(number: int, size: tuple[int, int] = (500, 375)) -> Image.Image:
    """Return one of any number of different photographs: a resized part of one of the two."""
    draw = np.random.default_rng(number)
    width = int(draw.integers(300, 570))
    height = width * size[1] // size[0]
    left, top = int(draw.integers(0, 641 - width)), int(draw.integers(0, max(1, 428 - height)))
    part = photographs()[number % 2].crop((left, top, left + width, top + min(height, 427)))
    return part.resize(size, Image.Resampling.BICUBIC)


def encoded(picture: Image.Image, kind: str = "JPEG") -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **({"quality": 90} if kind == "JPEG" else {}))
    return out.getvalue()


def write_shard(path: Path, members: dict[str, bytes]) -> None:
    """Write a tar file of these members, in this order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def lengthen_index(root: Path, count: int) -> None:
    """Lengthen the only index in the cache below `root` to `count` images, by repeating its entries."""
    (entry,) = (root / "cache").glob("index-*")
    facts = json.loads((entry / "index.json").read_text())
    np.resize(np.fromfile(entry / "table.bin", RECORD), count).tofile(entry / "table.bin")
    (entry / "names.bin").write_bytes(b"x" * count)
    np.arange(1, count + 1, dtype="<u8").tofile(entry / "name_ends.u64")
    (entry / "index.json").write_text(json.dumps(facts | {"count": count}))


def write_shards(
    folder: Path,
    count: int,
    *,
    shards: int = 2,
    size: tuple[int, int] = (24, 18),
    kind: str = "JPEG",
    split: str = "train",
    classes: int = 4,
) -> str:
    """Write a `webdataset:` set of photographs, labelled by .cls or .json in turn, and return its name."""
    suffix = {"JPEG": "jpg", "PNG": "png"}[kind]
    for shard in range(shards):
        members = {}
        for number in range(shard, count, shards):
            members[f"{number:05d}.{suffix}"] = encoded(photograph(number, size), kind)
            label = number % classes
            if number % 2:
                members[f"{number:05d}.cls"] = str(label).encode()
            else:
                members[f"{number:05d}.json"] = json.dumps({"label": label}).encode()
        write_shard(folder / f"{split}-{shard:03d}.tar", members)
    return f"webdataset:{folder}"
