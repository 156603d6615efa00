"""Arrays saved by numpy: layouts, splits, and what can be wrong with them."""

import os
import sys
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from intnacl.data.images import ImageSet, LoadRequest
from intnacl.data.npz import load_npz
from mistakes import must_refuse

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


def test_channels_last_and_first_are_the_same(file, tmp_path):
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
def test_grey_gets_three_channels(file, shape):
    images = pixels(*shape)
    np.savez(file, images=images)
    assert torch.equal(get(file).images, torch.from_numpy(images.reshape(4, 1, 5, 6)).expand(-1, 3, -1, -1))


def test_a_file_with_both_splits_is_opened_once_per_load(file):
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
def test_a_folder_of_splits_has_the_classes_of_both(tmp_path, names):
    np.savez(tmp_path / "train.npz", images=pixels(2, 5, 5, 3), labels=np.array([0, 3]), **names)
    np.savez(tmp_path / "test.npz", images=pixels(1, 5, 5, 3), labels=np.array([1]))
    OPENED.clear()
    classes = get(tmp_path, "test").classes
    assert [OPENED.count(str(tmp_path / f"{split}.npz")) for split in ("train", "test")] == [1, 1]
    assert classes == get(tmp_path).classes == (("cat", "dog", "cow", "ant") if names else tuple("0123"))
    np.savez(tmp_path / "test.npz", labels=np.array([1]))
    must_refuse(get, tmp_path, "test", r"test\.npz has no array 'images'; it holds labels")
    (tmp_path / "test.npz").unlink()
    must_refuse(get, tmp_path, "test", r"holds no test split: save 'images'")


@pytest.mark.parametrize("form", [np.array, lambda names: np.char.encode(names, "utf-8"), np.atleast_2d])
def test_class_names(file, form):
    content = {"images": pixels(2, 5, 5, 3), "classes": form(["Kätzchen", "dog"])}
    np.savez(file, **content, labels=np.array([0, 1]))
    assert get(file).classes == ("Kätzchen", "dog")
    np.savez(file, **content, labels=np.array([0, 3]))
    must_refuse(get, file, r"set\.npz: label 3 has no name; 'classes' holds 2")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": pixels(2, 5, 5, 3).astype(np.float32)}, "images are float32; save them as uint8"),
        ({"images": pixels(2, 5, 5, 4)}, r"images have shape \(2, 5, 5, 4\); expected"),
        ({"images": pixels(2, 75)}, r"images have shape \(2, 75\)"),
        ({"images": pixels(0, 5, 5, 3)}, r"images have shape \(0, 5, 5, 3\)"),
        ({"images": pixels(2, 5, 5, 3), "labels": np.array([0])}, r"labels are int64 \(1,\); expected 2"),
        ({"images": pixels(2, 5, 5, 3), "labels": np.array([0, -1])}, "a label is -1; classes count from 0"),
        ({"images": pixels(2, 5, 5, 3), "labels": np.array([0.0, 1.0])}, "labels are float64"),
        ({"images": pixels(2, 5, 5, 3), "labels": np.array([0, 20261115])}, "label 20261115 is not a class"),
        ({"x": pixels(2, 5, 5, 3)}, "holds no train split, only x: save 'images'"),
        ({"images": np.array([{}, {}])}, r"damaged or not an \.npz file .*allow_pickle"),
    ],
)
def test_wrong_arrays_are_named(file, arrays, message):
    np.savez(file, **arrays)
    must_refuse(get, file, rf"set\.npz.*{message}")


@pytest.mark.parametrize("keep", [0, 10, 100, -30])
def test_a_truncated_file_is_named(file, keep):
    np.savez(file, images=pixels(2, 5, 5, 3))
    must_refuse(get, file, "test", r"set\.npz holds no test split, only images: save .*'test_images'")
    file.write_bytes(file.read_bytes()[:keep])
    must_refuse(get, file, r"set\.npz is damaged")


def test_files_that_are_not_npz_are_named(file, tmp_path):
    must_refuse(get, file, r"set\.npz does not exist")
    os.mkfifo(tmp_path / "pipe")
    must_refuse(get, tmp_path / "pipe", r"pipe is not a regular file")
    file.symlink_to("nowhere")
    must_refuse(get, file, r"set\.npz is a broken link")
    np.save(tmp_path / "x.npy", pixels(2, 5, 5, 3))
    must_refuse(get, tmp_path / "x.npy", r"x\.npy is damaged or not an \.npz")


def npy(header: str) -> bytes:
    """A .npy file of version 1 with any header, damaged or malicious."""
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"images": b"plain bytes"}, "'images' is not an array"),
        ({"images.npy": b"plain bytes"}, "'images' is not an array"),
        ({"images.npy": npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({2**70},)}}")}, "memory"),
        ({"images.npy": npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({2**60},)}}")}, "memory"),
        ({"images.npy": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2,")}, ""),
        ({"images.npy": npy("{'descr': '|u1'")}, ""),
        ({"images.npy": npy("[" * 5000)}, ""),
    ],
    ids=["no .npy", "no array", "2**70", "2**60", "not closed", "half", "nested"],
)
def test_damaged_members_are_named(file, members, message):
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    must_refuse(get, file, rf"set\.npz is damaged.*{message}")
