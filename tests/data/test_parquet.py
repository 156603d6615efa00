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
from intnacl.errors import InputError

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


def test_one_file(tmp_path: Path, image: Encode) -> None:
    file = save(tmp_path / "pets.parquet", structs(image, 0, 1, 2), [1, 0, 1], ["cat", "dog"])
    got = get(file)
    assert got.classes == ("cat", "dog")
    assert got.labels.tolist() == [1, 0, 1]
    assert torch.equal(got.images[2], torch.from_numpy(decode(image(2), 8)))
    with pytest.raises(InputError, match=r"pets\.parquet has no test split: give a folder"):
        get(file, "test")
    with pytest.raises(InputError, match="nowhere does not exist"):
        get(tmp_path / "nowhere")


@pytest.mark.parametrize("place", ["{}-00000-of-00001.parquet", "data/{}-0.parquet", "{}/0000.parquet"])
@pytest.mark.parametrize("test_name", ["test", "validation"])
def test_splits_share_their_classes(tmp_path: Path, image: Encode, place: str, test_name: str) -> None:
    save(tmp_path / "pets" / place.format("train"), structs(image, 0, 1), [0, 4])
    save(tmp_path / "pets" / place.format(test_name), structs(image, 2), [1])
    train, test = get(tmp_path / "pets"), get(tmp_path / "pets", "test")
    assert len(train.images) == 2
    assert test.labels.tolist() == [1]
    assert test.classes == train.classes == tuple("01234")


def test_shards_go_in_order(tmp_path: Path, image: Encode) -> None:
    save(tmp_path / "pets" / "train-1.parquet", structs(image, 2), [2])
    save(tmp_path / "pets" / "train-0.parquet", structs(image, 0, 1), [0, 1])
    assert get(tmp_path / "pets").labels.tolist() == [0, 1, 2]


def test_files_without_split_names_are_for_training(tmp_path: Path, image: Encode) -> None:
    file = save(tmp_path / "pets" / "part-0.parquet", structs(image, 0), [0])
    assert find_files(tmp_path / "pets", "train") == [file]
    with pytest.raises(InputError, match="no test split"):
        find_files(tmp_path / "pets", "test")


def test_plain_bytes_without_labels(tmp_path: Path, image: Encode) -> None:
    got = get(save(tmp_path / "pets.parquet", [image(0), image(1)]))
    assert got.images.shape == (2, 3, 8, 8)
    assert got.labels is None


@pytest.mark.parametrize("missing", [-1, None])
def test_a_split_published_without_labels(tmp_path: Path, image: Encode, missing: int | None) -> None:
    save(tmp_path / "pets" / "train.parquet", structs(image, 0), [0], ["cat", "dog"])
    labels = pa.array([missing, missing], pa.int64())
    save(tmp_path / "pets" / "test.parquet", structs(image, 1, 2), labels, ["cat", "dog"])
    assert get(tmp_path / "pets", "test").labels is None


def test_a_split_labelled_in_some_files_alone_is_refused(tmp_path: Path, image: Encode) -> None:
    save(tmp_path / "pets" / "train-0.parquet", structs(image, 0, 1), [0, 1])
    save(tmp_path / "pets" / "train-1.parquet", structs(image, 2), [-1])
    with pytest.raises(InputError, match=r"2 of 3 images of the train split have a label: give all"):
        get(tmp_path / "pets")


def test_broken_images_are_skipped_and_named(tmp_path: Path, image: Encode) -> None:
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
        ([0, 20261115], None, "label 20261115 is no class: number them 0, 1, 2"),
    ],
)
def test_mislabelled_files_are_named(
    tmp_path: Path, image: Encode, labels: list[Any], names: list[str] | None, message: str
) -> None:
    file = save(tmp_path / "pets.parquet", structs(image, 0, 1), labels, names)
    with pytest.raises(InputError, match=rf"{re.escape(str(tmp_path))}.*{message}"):
        get(file)


def test_a_file_without_images_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "text.parquet")
    with pytest.raises(InputError, match=r"text\.parquet has no column image or img; it has \['text'\]"):
        get(tmp_path / "text.parquet")


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_a_truncated_file_is_named(tmp_path: Path, image: Encode, keep: int) -> None:
    file = save(tmp_path / "pets.parquet", structs(image, 0), [0])
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"pets\.parquet is damaged"):
        get(file)
    file = save(tmp_path / "pets.parquet", structs(image, *range(20)), [0] * 20)
    data = bytearray(file.read_bytes())
    data[4:200] = bytes(196)  # within the pages
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"pets\.parquet is damaged"):
        get(file)


def test_a_damaged_page_of_labels_is_named(tmp_path: Path, image: Encode) -> None:
    file = save(tmp_path / "pets.parquet", structs(image, 0, 1), [0, 1])
    start = pq.ParquetFile(file).metadata.row_group(0).column(2).dictionary_page_offset
    data = bytearray(file.read_bytes())
    data[start : start + 40] = bytes(40)
    file.write_bytes(data)
    with pytest.raises(InputError, match=r"pets\.parquet: the column 'label' is damaged"):
        get(file)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes")
def test_a_pipe_is_refused_instead_of_read_for_ever(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.parquet")
    with pytest.raises(InputError, match=r"train\.parquet is no regular file, but a pipe or a device"):
        get(tmp_path)


def test_deeply_nested_metadata_is_passed_over(tmp_path: Path, image: Encode) -> None:
    table = pa.table({"image": structs(image, 0), "label": [0]})
    table = table.replace_schema_metadata({"huggingface": "[" * 100_000})
    pq.write_table(table, tmp_path / "pets.parquet")
    assert get(tmp_path / "pets.parquet").classes == ("0",)


def test_without_pyarrow_it_says_what_to_install(
    tmp_path: Path, image: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save(tmp_path / "pets.parquet", structs(image, 0), [0])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install '/.*\[parquet\]'"):
        get(file)
