"""Arrays saved by numpy: layouts, splits, and what can be wrong with them."""

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from intnacl.data.images import ImageSet, LoadRequest
from intnacl.data.npz import load_npz
from intnacl.errors import InputError

OPENED: list[str] = []  # every file that Python opens


@pytest.fixture(scope="module", autouse=True)
def _watch() -> None:
    sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if event == "open" else None)


def pixels(*shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def get(path: Path, split: str = "train") -> ImageSet:
    return load_npz(LoadRequest(split=split, root=path, path=path))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "set.npz"


def test_channels_last_and_first_are_the_same(file: Path, tmp_path: Path) -> None:
    images = pixels(4, 5, 6, 3)
    np.savez(file, images=images, labels=np.array([0, 2, 1, 0]))
    np.savez_compressed(tmp_path / "first.npz", images=images.transpose(0, 3, 1, 2))
    last, first = get(file), get(tmp_path / "first.npz")
    assert torch.equal(last.images, torch.from_numpy(images).permute(0, 3, 1, 2))
    assert torch.equal(last.images, first.images)
    assert last.labels.tolist() == [0, 2, 1, 0]
    assert last.classes == ("0", "1", "2")
    assert first.labels is None


@pytest.mark.parametrize("shape", [(4, 5, 6), (4, 5, 6, 1), (4, 1, 5, 6)])
def test_grey_gets_three_channels(file: Path, shape: tuple[int, ...]) -> None:
    images = pixels(*shape)
    np.savez(file, images=images)
    got = get(file).images
    assert got.shape == (4, 3, 5, 6)
    for channel in range(3):
        assert np.array_equal(got[:, channel].numpy(), images.reshape(4, 5, 6))


def test_both_splits_in_one_file_which_is_opened_once_a_load(file: Path) -> None:
    np.savez(
        file,
        train_images=pixels(4, 5, 5, 3),
        train_labels=np.array([[0], [1], [4], [1]], np.uint8),
        test_images=pixels(2, 5, 5, 3),
        test_labels=np.array([[0], [1]], np.uint8),
    )
    OPENED.clear()
    train, test = get(file), get(file, "test")
    assert OPENED.count(str(file)) == 2
    assert len(train.images) == 4
    assert test.labels.tolist() == [0, 1]
    assert test.classes == train.classes == tuple("01234")


@pytest.mark.parametrize("names", [{}, {"classes": np.array(["cat", "dog", "cow", "ant"])}])
def test_a_folder_of_splits_has_the_classes_of_both(tmp_path: Path, names: dict[str, Any]) -> None:
    np.savez(tmp_path / "train.npz", images=pixels(2, 5, 5, 3), labels=np.array([0, 3]), **names)
    np.savez(tmp_path / "test.npz", images=pixels(1, 5, 5, 3), labels=np.array([1]))
    OPENED.clear()
    classes = get(tmp_path, "test").classes
    assert [OPENED.count(str(tmp_path / f"{split}.npz")) for split in ("train", "test")] == [1, 1]
    assert classes == get(tmp_path).classes == (("cat", "dog", "cow", "ant") if names else tuple("0123"))
    np.savez(tmp_path / "test.npz", labels=np.array([1]))
    with pytest.raises(InputError, match=r"test\.npz has no array 'images'; it holds labels"):
        get(tmp_path, "test")
    (tmp_path / "test.npz").unlink()
    with pytest.raises(InputError, match=r"holds no test split: save 'images'"):
        get(tmp_path, "test")


@pytest.mark.parametrize(
    "names",
    [
        np.array(["Kätzchen", "dog"]),
        np.array(["Kätzchen".encode(), b"dog"]),
        np.array([["Kätzchen"], ["dog"]]),
    ],
    ids=["texts", "bytes", "2-d"],
)
def test_class_names(file: Path, names: npt.NDArray[Any]) -> None:
    np.savez(file, images=pixels(2, 5, 5, 3), labels=np.array([0, 1]), classes=names)
    assert get(file).classes == ("Kätzchen", "dog")
    np.savez(file, images=pixels(2, 5, 5, 3), labels=np.array([0, 3]), classes=names)
    with pytest.raises(InputError, match=r"set\.npz: label 3 has no name; 'classes' holds 2"):
        get(file)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": pixels(2, 5, 5, 3).astype(np.float32)}, "images are float32; save them as uint8"),
        ({"images": pixels(2, 5, 5, 4)}, r"images have shape \(2, 5, 5, 4\); wanted"),
        ({"images": pixels(2, 75)}, r"images have shape \(2, 75\)"),
        ({"images": pixels(0, 5, 5, 3)}, r"images have shape \(0, 5, 5, 3\)"),
        ({"images": pixels(2, 5, 5, 3), "labels": np.array([0])}, r"labels are int64 \(1,\); wanted 2"),
        ({"images": pixels(2, 5, 5, 3), "labels": np.array([0, -1])}, "a label is -1; classes count from 0"),
        ({"images": pixels(2, 5, 5, 3), "labels": np.array([0.0, 1.0])}, "labels are float64"),
        ({"images": pixels(2, 5, 5, 3), "labels": np.array([0, 20261115])}, "label 20261115 is no class"),
        ({"x": pixels(2, 5, 5, 3)}, "holds no train split, only x: save 'images'"),
        ({"images": np.array([{}, {}])}, r"damaged or no \.npz file .*allow_pickle"),
    ],
)
def test_wrong_arrays_are_named(file: Path, arrays: dict[str, npt.NDArray[np.uint8]], message: str) -> None:
    np.savez(file, **arrays)
    with pytest.raises(InputError, match=rf"set\.npz.*{message}"):
        get(file)


def test_a_file_without_a_test_split_says_so(file: Path) -> None:
    np.savez(file, images=pixels(2, 5, 5, 3))
    with pytest.raises(InputError, match=r"set\.npz holds no test split, only images: save .*'test_images'"):
        get(file, "test")


@pytest.mark.parametrize("keep", [0, 10, 100, -30])
def test_a_truncated_file_is_named(file: Path, keep: int) -> None:
    np.savez(file, images=pixels(2, 5, 5, 3))
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"set\.npz is damaged"):
        get(file)


def npy(header: str) -> bytes:
    """The head of a .npy file of version 1, as damage or malice may leave it."""
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"images": b"plain bytes"}, "'images' is no array"),
        ({"images.npy": b"plain bytes"}, "'images' is no array"),
        ({"images.npy": npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({2**70},)}}")}, "memory"),
        ({"images.npy": npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({2**60},)}}")}, "memory"),
        ({"images.npy": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2,")}, ""),
        ({"images.npy": npy("{'descr': '|u1'")}, ""),
        ({"images.npy": npy("[" * 5000)}, ""),
    ],
    ids=["no .npy", "no array", "2**70", "2**60", "not closed", "half", "nested"],
)
def test_damaged_members_are_named(file: Path, members: dict[str, bytes], message: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(InputError, match=rf"set\.npz is damaged.*{message}"):
        get(file)


def test_what_is_no_npz_is_named(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"set\.npz does not exist"):
        get(file)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe is no regular file"):
        get(tmp_path / "pipe")
    file.symlink_to("nowhere")
    with pytest.raises(InputError, match=r"set\.npz is a broken link"):
        get(file)
    np.save(tmp_path / "x.npy", pixels(2, 5, 5, 3))
    with pytest.raises(InputError, match=r"x\.npy is damaged or no \.npz"):
        get(tmp_path / "x.npy")
