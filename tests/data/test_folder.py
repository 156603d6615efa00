"""Folders of images: class folders, flat folders, splits, and what can be wrong with them."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from intnacl.data.folder import load_folder
from intnacl.data.images import ImageSet, LoadRequest, decode
from mistakes import must_refuse

Encode = Callable[..., bytes]


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def get(path: Path, split: str = "train", size: int | None = 8) -> ImageSet:
    return load_folder(LoadRequest(split=split, root=path.parent / "root", path=path, size=size))


@pytest.fixture
def pets(tmp_path: Path, image: Encode) -> Path:
    for seed, name in enumerate(["cat/1.png", "cat/2.PNG", "cat/deep/3.jpg", "dog/1.png"]):
        kind = "JPEG" if name.endswith("jpg") else "PNG"
        put(tmp_path / "pets" / name, image(seed, kind=kind))
    put(tmp_path / "pets" / "cat" / "Thumbs.db", b"")
    put(tmp_path / "pets" / ".hidden" / "x.png", image())
    put(tmp_path / "pets" / "cat" / ".ipynb_checkpoints" / "1-checkpoint.png", image())
    return tmp_path / "pets"


def test_class_folders_give_labels_and_a_changed_image_is_seen(pets, image):
    got = get(pets)
    assert got.classes == ("cat", "dog")
    assert got.labels.tolist() == [0, 0, 0, 1]
    assert torch.equal(got.images[3], torch.from_numpy(decode(image(3), 8)))
    assert not got.skipped
    (pets / "dog" / "1.png").write_bytes(image(99))
    os.utime(pets / "dog" / "1.png", (1, 1))
    after = get(pets).images
    assert torch.equal(after[:3], got.images[:3])
    assert torch.equal(after[3], torch.from_numpy(decode(image(99), 8)))


def test_a_flat_folder_is_unlabelled_and_resized_to_32_by_default(tmp_path, image):
    put(tmp_path / "flat" / "0.webp", image(0, kind="WEBP"))
    put(tmp_path / "flat" / "wide.png", image(size=(70, 40)))
    put(tmp_path / "flat" / "tiny.png", image(size=(3, 5)))
    got = get(tmp_path / "flat", size=None)
    assert got.images.shape == (3, 3, 32, 32)
    assert (got.labels, got.classes) == (None, ())


NAMES = [*(("train", name) for name in ("test", "val", "valid", "validation"))]


@pytest.mark.parametrize(("train", "test"), [*NAMES, ("Train", "Test"), ("training", "testing")])
def test_splits_share_the_training_classes(tmp_path, image, train, test):
    for name in (f"{train}/cat/1.png", f"{train}/dog/1.png", f"{test}/dog/1.png"):
        put(tmp_path / "pets" / name, image())
    got = get(tmp_path / "pets", "test")
    assert got.classes == ("cat", "dog")
    assert got.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("files", "train", "test"),
    [
        ("train/cat/1 val/cat/1 val/cat/2 test/cat/1", ("cat",), 1),  # test goes before val
        ("train/1 plane/1", ("plane", "train"), None),  # a class may be called train
        ("train/cat/1 train/dog/1 test/dog/1 unlabelled/1", ("cat", "dog"), 1),  # others are passed over
    ],
)
def test_folders_are_splits_if_train_is_beside_test_or_alone(tmp_path, image, files, train, test):
    for name in files.split():
        put(tmp_path / "set" / f"{name}.png", image())
    assert get(tmp_path / "set").classes == train
    assert test is None or len(get(tmp_path / "set", "test").images) == test


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes")
def test_a_class_name_that_is_not_utf_8_can_be_shown(tmp_path, image):
    for name in (b"caf\xe8", b"caf\xe9", "カフェ".encode()):
        put(tmp_path / "cafes" / os.fsdecode(name) / "1.png", image())
    got = get(tmp_path / "cafes")
    assert got.classes == (r"caf\xe8", r"caf\xe9", "カフェ")
    assert got.labels.tolist() == [0, 1, 2]


def test_mistakes_in_folders_are_named(pets, tmp_path, image):
    must_refuse(get, tmp_path / "nowhere", r"nowhere is not a folder")
    must_refuse(get, pets, "test", r"pets has no test split: put its images into .*train and .*test")
    put(pets / "loose.png", image())
    mixed = (
        r"pets mixes images \(loose\.png, …\) and folders \(cat, …\): give each class .* move all .* one\."
    )
    must_refuse(get, pets, mixed)
    (pets / "loose.png").unlink()
    (pets / "fish").mkdir()
    must_refuse(get, pets, r"class folder .*fish holds no image \(\.bmp, .*\): put some in")
    (tmp_path / "empty").mkdir()
    must_refuse(get, tmp_path / "empty", r"empty holds no images \(\.bmp, .*\) and no class folders")
    put(tmp_path / "set" / "train" / "cat" / "1.png", image())
    alone = r"set has no test split: put images into \S+test\. `intnacl pretrain` .* only a train split"
    must_refuse(get, tmp_path / "set", "test", alone)
    put(tmp_path / "set" / "test" / "bird" / "1.png", image())
    must_refuse(get, tmp_path / "set", "test", r"bird is not a class of the training folder, which has cat")


@pytest.mark.skipif(sys.platform == "win32", reason="links")
@pytest.mark.parametrize("target", ["/", "..", "."])
def test_a_link_to_a_folder_that_contains_the_set_is_refused(pets, target):
    (pets / "all").symlink_to(target)
    must_refuse(get, pets, r"the folder .*all links to .*, which holds the data set itself")
    (pets / "all").unlink()
    splits = pets.parent / "set"
    splits.mkdir()
    (splits / "train").symlink_to(pets)
    for split in ("test", "train"):
        (splits / split).unlink(missing_ok=True)
        (splits / split).symlink_to("/")
        told = rf"the folder .*{split} links to /, which holds the data set itself"
        must_refuse(get, splits, split, told)
