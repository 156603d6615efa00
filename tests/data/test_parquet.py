"""Hugging Face's parquet layout: splits, class names, and what can be wrong with it."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from intnacl.data.images import ImageSet, LoadRequest, decode
from intnacl.data.parquet import find_files, load_parquet
from mistakes import must_refuse

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
Encode = Callable[..., bytes]


def save(
    path: Path, images: list[Any], labels: list[Any] | None = None, names: list[str] | None = None
) -> Path:
    columns = {"image": images} | ({"label": labels} if labels is not None else {})
    table = pa.table(columns)
    if names is not None:
        features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


def structs(image: Encode, *seeds: int) -> list[dict[str, Any]]:
    return [{"bytes": image(seed), "path": f"{seed}.png"} for seed in seeds]


def get(path: Path, split: str = "train", root: Path | None = None) -> ImageSet:
    return load_parquet(LoadRequest(split=split, root=root or path.parent / "root", path=path, size=8))


def test_one_file(tmp_path, image):
    file = save(tmp_path / "pets.parquet", structs(image, 0, 1, 2), [1, 0, 1], ["cat", "dog"])
    got = get(file)
    assert got.classes == ("cat", "dog")
    assert got.labels.tolist() == [1, 0, 1]
    assert torch.equal(got.images[2], torch.from_numpy(decode(image(2), 8)))
    must_refuse(get, file, "test", r"pets\.parquet has no test split: give a folder")
    must_refuse(get, tmp_path / "nowhere", "nowhere does not exist")
    plain = get(save(tmp_path / "plain.parquet", [image(0), image(1)]))
    assert plain.images.shape == (2, 3, 8, 8)
    assert plain.labels is None


def test_shards_are_read_in_order_and_those_without_a_split_name_are_for_training(tmp_path, image):
    for number in (2, 1, 0):
        save(tmp_path / "pets" / f"train-{number}.parquet", structs(image, number), [number])
    assert get(tmp_path / "pets").labels.tolist() == [0, 1, 2]
    file = save(tmp_path / "part" / "part-0.parquet", structs(image, 0), [0])
    assert find_files(tmp_path / "part", "train") == [file]
    must_refuse(find_files, tmp_path / "part", "test", "no test split")


@pytest.mark.parametrize("place", ["{}-00000-of-00001.parquet", "data/{}-0.parquet", "{}/0000.parquet"])
@pytest.mark.parametrize("test_name", ["test", "validation"])
def test_splits_share_their_classes(tmp_path, image, place, test_name):
    save(tmp_path / "pets" / place.format("train"), structs(image, 0, 1), [0, 4])
    save(tmp_path / "pets" / place.format(test_name), structs(image, 2), [1])
    train, test = get(tmp_path / "pets"), get(tmp_path / "pets", "test")
    assert len(train.images) == 2
    assert test.labels.tolist() == [1]
    assert test.classes == train.classes == tuple("01234")


@pytest.mark.parametrize("missing", [-1, None])
def test_a_split_may_have_no_labels_but_not_only_some(tmp_path, image, missing):
    save(tmp_path / "pets" / "train.parquet", structs(image, 0), [0], ["cat", "dog"])
    labels = pa.array([missing, missing], pa.int64())
    save(tmp_path / "pets" / "test.parquet", structs(image, 1, 2), labels, ["cat", "dog"])
    assert get(tmp_path / "pets", "test").labels is None
    save(tmp_path / "part" / "train-0.parquet", structs(image, 0, 1), [0, 1])
    save(tmp_path / "part" / "train-1.parquet", structs(image, 2), pa.array([missing], pa.int64()))
    must_refuse(get, tmp_path / "part", r"2 of 3 images of the train split have a label: give all")


def test_broken_images_are_skipped_and_named(tmp_path, image):
    images = [*structs(image, 0, 1), {"bytes": b"junk", "path": None}, {"bytes": None, "path": "x.png"}]
    got = get(save(tmp_path / "pets.parquet", images, [0, 1, 0, 1]))
    assert got.labels.tolist() == [0, 1]
    assert list(got.skipped) == ["pets.parquet row 2", "pets.parquet row 3"]


@pytest.mark.parametrize(
    ("labels", "names", "message"),
    [
        ([0, 2], ["cat", "dog"], "row 1: label 2 is not one of 0…1"),
        ([0, -1], ["cat", "dog"], "row 1: label -1 is not one of 0…1"),
        (["cat", "dog"], None, "column 'label' does not hold integers"),
        ([0, 20261115], None, "label 20261115 is not a class: number them 0, 1, 2"),
    ],
)
def test_files_without_images_or_mislabelled_are_named(tmp_path, image, labels, names, message):
    file = save(tmp_path / "pets.parquet", structs(image, 0, 1), labels, names)
    must_refuse(get, file, rf"{re.escape(str(tmp_path))}.*{message}")
    pq.write_table(pa.table({"text": ["a"]}), file)
    must_refuse(get, file, r"pets\.parquet has no column image or img; it has \['text'\]")


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_a_truncated_file_is_named(tmp_path, image, keep):
    file = save(tmp_path / "pets.parquet", structs(image, 0), [0])
    file.write_bytes(file.read_bytes()[:keep])
    must_refuse(get, file, r"pets\.parquet is damaged")


@pytest.mark.parametrize(
    ("column", "message"), [(0, r"pets\.parquet is damaged"), (2, "the column 'label' is damaged")]
)
def test_a_damaged_page_is_named(tmp_path, image, column, message):
    file = save(tmp_path / "pets.parquet", structs(image, *range(20)), [0, 1] * 10)
    start = pq.ParquetFile(file).metadata.row_group(0).column(column).dictionary_page_offset
    data = bytearray(file.read_bytes())
    data[start : start + 40] = bytes(40)
    file.write_bytes(data)
    must_refuse(get, file, message)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes")
def test_a_pipe_is_refused_rather_than_read_for_ever(tmp_path):
    os.mkfifo(tmp_path / "train.parquet")
    must_refuse(get, tmp_path, r"train\.parquet is not a regular file but a pipe or a device")


def test_deeply_nested_metadata_is_ignored(tmp_path, image):
    table = pa.table({"image": structs(image, 0), "label": [0]})
    table = table.replace_schema_metadata({"huggingface": "[" * 100_000})
    pq.write_table(table, tmp_path / "pets.parquet")
    assert get(tmp_path / "pets.parquet").classes == ("0",)


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, image, monkeypatch):
    file = save(tmp_path / "pets.parquet", structs(image, 0), [0])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    must_refuse(get, file, r"pip install '/.*\[parquet\]'")
