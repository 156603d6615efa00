"""Folders of images: class folders, flat folders, splits, and what can be wrong with them."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from intnacl.data.folder import load_folder
from intnacl.data.images import ImageSet, LoadRequest, decode
from intnacl.errors import InputError

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


def test_class_folders_give_labels(pets: Path, image: Encode) -> None:
    got = get(pets)
    assert got.classes == ("cat", "dog")
    assert got.labels.tolist() == [0, 0, 0, 1]
    assert torch.equal(got.images[3], torch.from_numpy(decode(image(3), 8)))
    assert not got.skipped


def test_a_flat_folder_is_unlabelled_and_resized_to_32_by_default(tmp_path: Path, image: Encode) -> None:
    put(tmp_path / "flat" / "0.webp", image(0, kind="WEBP"))
    put(tmp_path / "flat" / "wide.png", image(size=(70, 40)))
    put(tmp_path / "flat" / "tiny.png", image(size=(3, 5)))
    got = get(tmp_path / "flat", size=None)
    assert got.images.shape == (3, 3, 32, 32)
    assert (got.labels, got.classes) == (None, ())


def test_broken_images_are_skipped_and_named(pets: Path, image: Encode) -> None:
    put(pets / "cat" / "0.png", b"")
    put(pets / "dog" / "0.png", image(size=(64, 64))[:200])
    got = get(pets)
    assert got.labels.tolist() == [0, 0, 0, 1]
    assert sorted(got.skipped) == ["cat/0.png", "dog/0.png"]
    assert got.names == ("cat/1.png", "cat/2.PNG", "cat/deep/3.jpg", "dog/1.png")


@pytest.mark.parametrize(
    ("train_name", "test_name"),
    [
        *(("train", name) for name in ("test", "val", "valid", "validation")),
        ("Train", "Test"),
        ("training", "testing"),
    ],
)
def test_splits_share_the_training_classes(
    tmp_path: Path, image: Encode, train_name: str, test_name: str
) -> None:
    for name in (f"{train_name}/cat/1.png", f"{train_name}/dog/1.png", f"{test_name}/dog/1.png"):
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
def test_folders_are_splits_where_train_stands_beside_test_or_alone(
    tmp_path: Path, image: Encode, files: str, train: tuple[str, ...], test: int | None
) -> None:
    for name in files.split():
        put(tmp_path / "set" / f"{name}.png", image())
    assert get(tmp_path / "set").classes == train
    if test is not None:
        assert len(get(tmp_path / "set", "test").images) == test


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes")
def test_a_class_name_that_is_no_utf_8_can_be_shown(tmp_path: Path, image: Encode) -> None:
    for name in (b"caf\xe8", b"caf\xe9", "カフェ".encode()):
        put(tmp_path / "cafes" / os.fsdecode(name) / "1.png", image())
    got = get(tmp_path / "cafes")
    assert got.classes == (r"caf\xe8", r"caf\xe9", "カフェ")
    assert got.labels.tolist() == [0, 1, 2]


def test_a_changed_image_is_seen(pets: Path, image: Encode) -> None:
    before = get(pets).images.clone()
    (pets / "dog" / "1.png").write_bytes(image(99))
    os.utime(pets / "dog" / "1.png", (1, 1))
    after = get(pets).images
    assert torch.equal(before[:3], after[:3])
    assert torch.equal(after[3], torch.from_numpy(decode(image(99), 8)))


def test_what_is_wrong_is_named(pets: Path, tmp_path: Path, image: Encode) -> None:
    with pytest.raises(InputError, match=r"nowhere is not a folder"):
        get(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"pets has no test split: put its images into .*train and .*test"):
        get(pets, "test")
    put(pets / "loose.png", image())
    mixed = (
        r"pets mixes images \(loose\.png, …\) and folders \(cat, …\): give each class .* move all .* one\."
    )
    with pytest.raises(InputError, match=mixed):
        get(pets)
    (pets / "loose.png").unlink()
    (pets / "fish").mkdir()
    with pytest.raises(InputError, match=r"class folder .*fish holds no image \(\.bmp, .*\): put some in"):
        get(pets)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty holds no images \(\.bmp, .*\) and no class folders"):
        get(tmp_path / "empty")


def test_wrong_splits_are_named(tmp_path: Path, image: Encode) -> None:
    put(tmp_path / "pets" / "train" / "cat" / "1.png", image())
    alone = r"pets has no test split: put images into \S+test\. `intnacl pretrain` .* train split alone"
    with pytest.raises(InputError, match=alone):
        get(tmp_path / "pets", "test")
    put(tmp_path / "pets" / "test" / "bird" / "1.png", image())
    with pytest.raises(InputError, match=r"bird is no class of the training folder, which has cat"):
        get(tmp_path / "pets", "test")


@pytest.mark.skipif(sys.platform == "win32", reason="links")
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_that_links_to_a_folder_around_the_set_is_refused(pets: Path, split: str) -> None:
    (pets.parent / "set").mkdir()
    (pets.parent / "set" / "train").symlink_to(pets)
    (pets.parent / "set" / split).unlink(missing_ok=True)
    (pets.parent / "set" / split).symlink_to("/")
    with pytest.raises(
        InputError, match=rf"the folder .*{split} links to /, which holds the data set itself"
    ):
        get(pets.parent / "set", split)


@pytest.mark.skipif(sys.platform == "win32", reason="links")
@pytest.mark.parametrize("target", ["/", "..", "."])
def test_a_class_that_links_to_a_folder_around_the_set_is_refused(pets: Path, target: str) -> None:
    (pets / "all").symlink_to(target)
    with pytest.raises(InputError, match=r"the folder .*all links to .*, which holds the data set itself"):
        get(pets)
