"""TinyImageNet's official layout, on a small scale."""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from intnacl.data import load, tinyimagenet
from intnacl.data.images import ImageSet, LoadRequest, decode
from intnacl.data.tinyimagenet import ARCHIVE, load_tinyimagenet
from intnacl.errors import InputError
from mistakes import must_refuse

Encode = Callable[..., bytes]
WNIDS = ("n02", "n01")  # not in alphabetical order, as the official file


def jpeg(image: Encode, seed: int, mode: str = "RGB") -> bytes:
    return image(seed, size=(64, 64), mode=mode, kind="JPEG")


@pytest.fixture
def folder(tmp_path: Path, image: Encode) -> Path:
    top = tmp_path / "tiny-imagenet-200"
    for seed, wnid in enumerate(WNIDS):
        images = top / "train" / wnid / "images"
        images.mkdir(parents=True)
        (top / "train" / wnid / f"{wnid}_boxes.txt").write_text("boxes")
        (images / f"{wnid}_0.JPEG").write_bytes(jpeg(image, seed))
        (images / f"{wnid}_1.JPEG").write_bytes(jpeg(image, 10 + seed, "L"))
    (top / "val" / "images").mkdir(parents=True)
    (top / "val" / "images" / "val_0.JPEG").write_bytes(jpeg(image, 20))
    (top / "val" / "images" / "val_1.JPEG").write_bytes(jpeg(image, 21))
    (top / "val" / "val_annotations.txt").write_text(
        "val_1.JPEG\tn02\t0\t0\t9\t9\nval_0.JPEG\tn01\t0\t0\t9\t9\n"
    )
    (top / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (top / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\ttabby, tabby cat\nn03\tother\n")
    return top


def get(folder: Path, split: str = "train") -> ImageSet:
    return load_tinyimagenet(LoadRequest(split=split, root=folder.parent))


def test_train_follows_wnids(folder, image):
    train = get(folder)
    assert train.classes == ("tabby", "goldfish")
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert torch.equal(train.images[2], torch.from_numpy(decode(jpeg(image, 1), 64)))
    grey = train.images[1]
    assert torch.equal(grey, grey[:1].expand(3, -1, -1))
    assert len(load_tinyimagenet(LoadRequest(split="train", root=folder)).images) == 4  # as the root itself
    (folder / "words.txt").unlink()
    assert get(folder).classes == WNIDS


def test_the_test_split_is_the_annotated_validation(folder, image):
    test = get(folder, "test")
    assert test.labels.tolist() == [1, 0]
    assert torch.equal(test.images[1], torch.from_numpy(decode(jpeg(image, 21), 64)))
    (folder / "val" / "val_annotations.txt").write_text("val_1.JPEG\tn01\nval_0.JPEG\tn02\n")
    assert get(folder, "test").labels.tolist() == [0, 1]  # a changed annotation is seen


def test_broken_and_wrong_sized_images_are_skipped_and_named(folder, image):
    images = folder / "train" / "n01" / "images"
    (images / "n01_0.JPEG").write_bytes(jpeg(image, 1)[:100])
    (images / "n01_1.JPEG").write_bytes(image(size=(32, 64), kind="JPEG"))
    train = get(folder)
    assert train.labels.tolist() == [0, 0]
    assert [Path(name).name for name in train.skipped] == ["n01_0.JPEG", "n01_1.JPEG"]
    assert "is 32×64, not 64×64" in list(train.skipped.values())[1]


def test_errors_for_missing_files_say_which_file_to_put_where(folder):
    (folder / "wnids.txt").write_text("n01\nn99\n")
    must_refuse(get, folder, r"n99.images is missing or holds no image")
    (folder / "wnids.txt").unlink()
    must_refuse(get, folder, r"wnids\.txt does not exist")
    shutil.rmtree(folder)
    by_hand = r"is not in .*Get https://cs231n\.stanford\.edu/tiny-imagenet-200\.zip and save it as "
    must_refuse(load, "tinyimagenet", by_hand, root=folder.parent, download=False)


def test_the_archive_is_checked_and_unpacked(folder, monkeypatch):
    assert ARCHIVE.url.startswith("https:")
    packed = Path(shutil.make_archive(str(folder), "zip", folder.parent, folder.name))
    expected = get(folder, "test").images.clone()
    shutil.rmtree(folder)
    must_refuse(get, folder, "test", r"tiny-imagenet-200\.zip is not the official archive")
    right = replace(ARCHIVE, md5=hashlib.md5(packed.read_bytes()).hexdigest())
    monkeypatch.setattr(tinyimagenet, "ARCHIVE", right)
    assert torch.equal(get(folder, "test").images, expected)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("val/val_annotations.txt", "val_0.JPEG\tn01\nval_1.JPEG\tn77\n", r"line 2: 'n77' is not in wnids"),
        ("val/val_annotations.txt", "val_0.JPEG\n", r"line 1: '' is not in wnids"),
        ("val/val_annotations.txt", "val_0.JPEG\tn01\n", r"differ in 1 files, such as val_1\.JPEG"),
        *((file, "", rf"{Path(file).name} is empty: delete the folder and unpack")
          for file in ("val/val_annotations.txt", "wnids.txt")),
    ],
)  # fmt: skip
def test_mislabelled_lists_are_named(folder, file, text, message):
    (folder / file).write_text(text)
    must_refuse(get, folder, "test", message)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes and links")
@pytest.mark.parametrize("place", ["train/n01/images/n01_9.JPEG", "words.txt", "val/val_annotations.txt"])
@pytest.mark.parametrize(("kind", "message"), [("link", "a broken link"), ("pipe", "not a regular file")])
def test_pipes_and_broken_links_are_named(folder, place, kind, message):
    (folder / place).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(folder / place)
    else:
        (folder / place).symlink_to("nowhere")
    with pytest.raises(InputError, match=rf"{Path(place).name} is {message}"):
        get(folder, "train" if place.startswith("train") else "test")
