"""`load`: every data set, checksums, and the handling of broken images and wrong names."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from intnacl.data import Dataset, load
from intnacl.data.datasets import DATASETS
from intnacl.errors import InputError, InputWarning
from mistakes import must_refuse, refused
from tiny_run import write_images

Encode = Callable[..., bytes]
# Of the content alone: a change here is a change of the data behind every published digit result.
DIGITS = {
    "train": "c6fcf5eb502e2b01af074bcc9b69f28644bc58e4a15b1b48d51f76bfc462d9a7",
    "test": "0c60cd2130a4c8e08363fbfecf75b285f57c3daa5cc2d02ec3da85f5b0de284f",
}


@pytest.fixture
def pets(tmp_path: Path, image: Encode) -> Path:
    for seed in range(6):
        file = tmp_path / "pets" / ("cat", "dog")[seed % 2] / f"{seed}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image(seed))
    return tmp_path / "pets"


def small(**changes: object) -> Dataset:
    images = torch.arange(2 * 3 * 2 * 2, dtype=torch.uint8).view(2, 3, 2, 2)
    values = {"images": images, "labels": torch.tensor([0, 1]), "classes": ("cat", "dog")}
    return Dataset(name="x", split="train", **(values | changes))  # type: ignore[arg-type]


def test_digits_are_the_default_never_change_and_have_the_listed_sizes():
    splits = [load(split=split) for split in ("train", "test")]
    assert {digits.split: digits.checksum for digits in splits} == DIGITS
    assert {digits.name for digits in splits} == {"digits"}
    assert DATASETS["digits"].counts == tuple(map(len, splits))
    assert {tuple(digits.images.shape[2:]) for digits in splits} == {(DATASETS["digits"].side,) * 2}
    assert (DATASETS["digits"].images, DATASETS["digits"].size) == ("1,442 + 355", "8×8")
    assert DATASETS["digits"].classes == str(len(load("digits").classes))


def test_the_checksum_covers_the_whole_content_and_nothing_else(pets, tmp_path):
    for changes in (
        {"images": torch.zeros(2, 3, 2, 2, dtype=torch.uint8)},
        {"images": small().images.view(2, 3, 4, 1)},
        {"labels": torch.tensor([1, 0])},
        {"labels": None},
        {"classes": ("cat", "cow")},
    ):
        assert small(**changes).checksum != small().checksum
    folder, arrays = load(f"folder:{pets}", size=8), tmp_path / "pets.npz"
    images, classes = folder.images.permute(0, 2, 3, 1).numpy(), np.array(folder.classes)
    np.savez(arrays, images=images, labels=folder.labels.numpy(), classes=classes)
    assert load(f"npz:{arrays}").checksum == folder.checksum
    channels_last = small().images.contiguous(memory_format=torch.channels_last)
    assert small(images=channels_last).checksum == small().checksum


def test_broken_images_are_warned_about_or_refused(pets):
    for i in range(7):
        (pets / "cat" / f"bad{i}.png").write_bytes(b"")
    message = r"7 of 13 images are broken: cat.bad0\.png \(empty\), .*bad4\.png \(empty\) and 2 more"
    for when in (pytest.warns(InputWarning, match=f"{message}; they are skipped"), nullcontext()):
        with when:  # decoded, then from the cache, where warnings would be errors
            dataset = load(f"folder:{pets}", size=8)
        assert len(dataset.skipped) == 7
        assert len(dataset) == 6
        with pytest.raises(InputError, match=message + r"\. Repair or remove them, or load without strict"):
            load(f"folder:{pets}", size=8, strict=True)
    assert "6 images, 8×8, 2 classes, 7 broken skipped; sha256" in dataset.summary()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "cifar1000"}, r"dataset='cifar1000' is unknown; did you mean 'cifar100'"),
        ({"name": "PETS"}, r"dataset='.*pets' is a path: write 'folder:.*pets', or parquet: or npz:"),
        ({"split": "val"}, r"split='val' is unknown.*test, train"),
        ({"name": "folder"}, r"dataset='folder': write 'folder:PATH'"),
        ({"name": "digits:x"}, r"dataset='digits:x': write 'digits'"),
        ({"size": 32}, r"size=32: digits has 8×8 images and is not resized: leave size out"),
        ({"name": "folder:PETS", "size": 0}, r"size=0"),
        ({"name": "folder:PETS", "size": "8"}, r"size='8'"),
        ({"name": "folder:~nobody-of-this-name/pets"}, "no such user"),
        (
            {"name": "cifar10", "root": "PETS/empty", "download": False},
            r"cifar-10-batches-py is not in .*save it as .*cifar-10-python\.tar\.gz",
        ),
    ],
)
def test_errors_for_wrong_arguments_say_what_is_allowed(pets, arguments, message):
    given = {k: v.replace("PETS", str(pets)) if isinstance(v, str) else v for k, v in arguments.items()}
    must_refuse(load, message, **given)
    assert load(f"folder:{pets}", size=np.int64(8)).images.shape[-1] == 8


def test_spread_and_captions(tmp_path, image):
    digits = load("digits")
    assert digits.spread(4).tolist() == [0, 360, 721, 1081]
    assert digits.spread(10_000).tolist() == list(range(1442))
    assert digits.captions(torch.tensor([0, 1])) == ["0", "1"]
    assert small(labels=None).captions(torch.tensor([1])) == ["no. 1"]
    must_refuse(digits.spread, 0, "rows=0")
    if sys.platform == "linux":  # a name that is no UTF-8 stays as it is, and can be drawn
        name = os.fsdecode(b"caf\xe8.png")
        (tmp_path / name).write_bytes(image())
        found = load(f"folder:{tmp_path}", root=tmp_path / ".root", size=8)
        assert found.names == (name,)
        assert found.captions(torch.tensor([0])) == ["caf\\xe8.png"]


def test_loading_the_digits_needs_no_optional_package():
    code = "import sys; import intnacl.data; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["sklearn", "matplotlib", "PIL", "rich", "pyarrow", "torchvision"]
    shown = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", ["folder", "parquet", "npz"])
def test_a_relative_path_that_does_not_exist_is_named_in_full(kind, root, tmp_path, monkeypatch):
    """A run remembers `folder:images`; called from another folder, it looks elsewhere."""
    monkeypatch.chdir(tmp_path)
    must_refuse(load, f"{kind}:images", rf"^{tmp_path}/images (is not a folder|does not exist)")


def test_held_out_images_are_an_equal_share_of_every_class_and_not_trained_on():
    whole = load("digits")
    rest, held = whole.hold_out(200)
    assert (rest.split, held.split, len(rest), len(held)) == ("train", "holdout", 1242, 200)
    assert sorted(rest.index.tolist() + held.index.tolist()) == list(range(1442))
    for part in (rest, held):
        assert torch.equal(part.images, whole.images[part.index])
        assert torch.equal(part.labels, whole.labels[part.index])
        assert part.checksum == whole.checksum
    share = torch.bincount(held.labels) - torch.bincount(whole.labels) * 200 / 1442
    assert share.abs().max() < 1
    assert held.index.tolist() != list(range(200))
    assert torch.equal(whole.hold_out(200)[1].index, held.index)


def test_images_without_labels_are_held_out_with_their_names(tmp_path):
    whole = load(write_images(tmp_path / "images", classes=()), root=tmp_path)
    rest, held = whole.hold_out(2)
    assert held.labels is None
    assert held.names == tuple(whole.names[i] for i in held.index)
    assert {*rest.names, *held.names} == set(whole.names)


test_a_hold_out_leaves_images_to_train_on = refused(
    lambda count: load("digits").hold_out(count),
    *((count, f"holdout={count} of the 1,442 training images of 'digits'") for count in (-1, 0, 1442)),
)
