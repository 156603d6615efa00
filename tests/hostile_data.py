"""A generator of malformed data sets of every kind, which are written to files and loaded."""

import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hostile import VALUES, Campaign, Canary, altered, damaged, damaged_json, misplace, pickled
from intnacl.console import show
from intnacl.data import load


def encoded(draw: random.Random, side: int = 8) -> bytes:
    """Return a small image in one of several formats."""
    mode, kind = draw.choice(
        (("RGB", "PNG"), ("L", "PNG"), ("RGB", "JPEG"), ("P", "GIF"), ("RGBA", "WEBP"), ("1", "TIFF"))
    )
    out = io.BytesIO()
    Image.frombytes("RGB", (side, side), draw.randbytes(3 * side * side)).convert(mode).save(out, kind)
    return out.getvalue()


def npz_file(draw: random.Random, place: Path, canary: Path) -> str:
    def array(shape: tuple[int, ...]) -> Any:
        kind = draw.choice(("u1", "u1", "u1", "i8", "f4", "O", "U3", "S3", "M8[s]", "?"))
        if kind == "O":
            return np.array([Canary(canary)], dtype=object)
        return np.zeros(shape, kind)

    usual = dict(train_images=(4, 8, 8, 3), train_labels=(4,), test_images=(4, 3, 8, 8), test_labels=(4, 1))
    odd = ((4, 8, 8), (4, 8, 7, 3), (0, 8, 8, 3), (4,), (4, 1), (3,), (), (2, 2))
    arrays = {name: np.zeros(shape, "u1") for name, shape in usual.items()}
    for name in draw.sample((*usual, "images", "labels", "classes"), draw.choice((0, 1, 1, 2))):
        arrays[name] = array(draw.choice(odd))
    np.savez(place / "set.npz", **arrays)
    if draw.random() < 0.5:
        data = (place / "set.npz").read_bytes()
        (place / "set.npz").write_bytes(damaged(draw, data))
    return f"npz:{place / 'set.npz'}"


def parquet_file(draw: random.Random, place: Path, canary: Path) -> str:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    images = [{"bytes": encoded(draw), "path": "x"} for _ in range(4)]
    odd_images = ([one["bytes"] for one in images], [1, 2, 3, 4], ["x"] * 4, [None] * 4, [[]] * 4)
    odd_labels = ([0, 1, 2, 10**12], [-1, 0, 1, 2], [None, 0, 1, 1], ["a"] * 4, [0.5] * 4, [10**15] * 4)
    columns = {
        "image": draw.choice(odd_images) if draw.random() < 0.3 else images,
        "label": draw.choice(odd_labels) if draw.random() < 0.3 else [0, 1, 0, 1],
    }
    names = {"info": {"features": {"image": {}, "label": {"names": ["a", "b"]}}}}
    metadata = json.dumps(altered(draw, names) if draw.random() < 0.5 else names)
    kept = draw.choice((["image"], ["image", "label"], ["image", "label"]))
    table = pa.table({name: columns[name] for name in kept})
    table = table.replace_schema_metadata({"huggingface": metadata})
    file = place / draw.choice(("set.parquet", "train.parquet"))
    pq.write_table(table, file, use_dictionary=draw.random() < 0.5)
    if draw.random() < 0.7:
        file.write_bytes(damaged(draw, file.read_bytes()))
    return f"parquet:{file}"


def image_folder(draw: random.Random, place: Path, canary: Path) -> str:
    odd = ("a\x1b[31mb\n", "\udcff", "é", "x" * 200, ".hidden", "[red]", "a b")
    classes = draw.choice((("cat", "dog"), (".",), ("cat",), (draw.choice(odd), "dog")))
    for top in draw.choice((("train", "test"), ("train",), (".",), ("Train", "val"))):
        for name in classes:
            sub = place / top / name
            sub.mkdir(parents=True, exist_ok=True)
            for i in range(3):
                stem = draw.choice(odd) if draw.random() < 0.2 else str(i)
                data = encoded(draw)
                file = sub / f"{stem}.{draw.choice(('png', 'jpg', 'gif', 'JPEG'))}"
                file.write_bytes(damaged(draw, data) if draw.random() < 0.3 else data)
                if draw.random() < 0.05:
                    misplace(draw, file)
    if draw.random() < 0.1:
        (place / "link").symlink_to(draw.choice(("/", ".", "..", "link", "nowhere", "cat")))
    return f"folder:{place}"


def cifar(draw: random.Random, place: Path, canary: Path) -> str:
    folder = place / "cifar-100-python"
    folder.mkdir()

    def part(value: Any) -> Any:
        odd = draw.random()
        return Canary(canary) if odd < 0.1 else draw.choice(VALUES) if odd < 0.2 else value

    names = part([f"class {i}".encode() for i in range(10)])
    (folder / "meta").write_bytes(pickled(part({b"fine_label_names": names})))
    for split in ("train", "test"):
        data = part(np.zeros((4, 3072), draw.choice(("u1", "u1", "u1", "f4", "O"))))
        labels = part([0, 1, 2, part(3)])
        content = pickled(part({b"data": data, b"fine_labels": labels}), draw.choice((2, 4)))
        (folder / split).write_bytes(damaged(draw, content) if draw.random() < 0.5 else content)
    if draw.random() < 0.1:
        misplace(draw, folder / "train")
    return "cifar100"


def tinyimagenet(draw: random.Random, place: Path, canary: Path) -> str:
    folder = place / "tiny-imagenet-200"
    for name in ("train/n01/images/a", "train/n02/images/b", "val/images/v0", "val/images/v1"):
        name = f"{name}.JPEG"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encoded(draw, 64))
    (folder / "wnids.txt").write_text("n01\nn02\n")
    (folder / "words.txt").write_text("n01\tfish\nn02\tcat, tabby\n")
    (folder / "val" / "val_annotations.txt").write_text("v0.JPEG\tn01\t0\nv1.JPEG\tn02\t0\n")
    for path in [path for path in sorted(folder.rglob("*")) if path.is_file()]:
        if draw.random() < 0.15:
            path.write_bytes(damaged(draw, path.read_bytes()))
        if draw.random() < 0.03:
            misplace(draw, path)
    return "tinyimagenet"


def data_sets(campaign: Campaign, count: int) -> None:
    draw = campaign.draw
    kinds = (npz_file, parquet_file, image_folder, cifar, tinyimagenet)
    for number in range(count):
        place, root = campaign.folder / f"set{number}", campaign.folder / f"root{number}"
        place.mkdir()
        kind = draw.choice(kinds)
        name = kind(draw, place, campaign.canary)
        root = place if kind in (cifar, tinyimagenet) else root

        def read(name: str = name, place: Path = root) -> None:
            for split in ("train", draw.choice(("train", "test"))):
                show(load(name, split, place, download=False).summary())
                for file in (place / "cache").glob("*/*"):
                    if draw.random() < 0.5:
                        change = damaged_json if file.suffix == ".json" else damaged
                        file.write_bytes(change(draw, file.read_bytes()))
            load(name, "train", place, download=False, strict=draw.random() < 0.2)

        campaign.attempt(f"{number}: {name}", read)
        for used in (place, root):
            shutil.rmtree(used, ignore_errors=True)
