"""CIFAR: pickles as Python 2 wrote them are read; hostile, damaged and mislabelled ones are refused."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from intnacl.data.cifar import load_cifar10, load_cifar100, unpickle
from intnacl.data.images import LoadRequest
from intnacl.errors import InputError
from mistakes import must_refuse
from python2 import python2_pickle


def pixels(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def batch(count: int = 4, labels_key: bytes = b"fine_labels", **changes: object) -> dict[bytes, object]:
    content = {b"data": pixels(count), labels_key: list(range(count)), b"filenames": [b"a.png"] * count}
    return content | {name.encode(): value for name, value in changes.items()}


@pytest.fixture
def cifar100(tmp_path: Path) -> Path:
    """A small CIFAR-100 folder of ten classes."""
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    names = [f"class {i}".encode() for i in range(10)]
    (folder / "meta").write_bytes(python2_pickle({b"fine_label_names": names}))
    (folder / "train").write_bytes(python2_pickle(batch(4)))
    (folder / "test").write_bytes(python2_pickle(batch(2)))
    return folder


def request(folder: Path, split: str = "train") -> LoadRequest:
    return LoadRequest(split=split, root=folder, download=False)


def test_cifar100_pixels_labels_and_classes(cifar100):
    train = load_cifar100(request(cifar100.parent))
    assert torch.equal(train.images.reshape(4, -1), torch.from_numpy(pixels(4)))
    assert train.images.shape == (4, 3, 32, 32)
    assert train.labels.tolist() == [0, 1, 2, 3]
    assert train.classes[:2] == ("class 0", "class 1")
    assert len(load_cifar100(request(cifar100.parent, "test")).images) == 2
    assert len(load_cifar100(request(cifar100)).images) == 4  # the folder itself as the root


def test_cifar10_joins_its_batches_in_order(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "batches.meta").write_bytes(python2_pickle({b"label_names": [b"cat", b"dog", b"bird"]}))
    for i in range(1, 6):
        content = batch(2, b"labels", data=pixels(2, seed=i))
        (folder / f"data_batch_{i}").write_bytes(python2_pickle(content))
    train = load_cifar10(request(tmp_path))
    wanted = np.concatenate([pixels(2, seed=i) for i in range(1, 6)])
    assert torch.equal(train.images.reshape(10, -1), torch.from_numpy(wanted))
    must_refuse(load_cifar10, request(tmp_path, "test"), r"test_batch is missing")


class Hostile:
    """Creates a file when unpickled by an ordinary unpickler."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.target),)


def test_a_hostile_pickle_never_runs(cifar100, tmp_path):
    hostile = pickle.dumps({"data": Hostile(tmp_path / "pwned")}, protocol=2)
    pickle.loads(hostile)  # the attack is real …
    assert (tmp_path / "pwned").exists()
    (tmp_path / "pwned").rmdir()
    (cifar100 / "train").write_bytes(hostile)
    with pytest.raises(InputError, match=r"cifar-100-python/train asks for posix\.mkdir.*refused"):
        load_cifar100(request(cifar100.parent))
    assert not (tmp_path / "pwned").exists()  # … and comes to nothing


UNNEEDED, DAMAGED = "which no CIFAR file needs: refused, no code ran", "x is damaged or no CIFAR file .*"


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", UNNEEDED),
        (b"cbuiltins\neval\n(S'1'\ntR.", UNNEEDED),
        (b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.", UNNEEDED),
        (b"cnumpy\nfromfile\n(S'x'\ntR.", UNNEEDED),
        (b"cnumpy.core.multiarray\nscalar\n.", UNNEEDED),
        (b"c_codecs\nencode\n.", UNNEEDED),
        (b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.", DAMAGED + "type b'O8'"),  # an array of objects
        (b"cnumpy\nndarray\n((I1\ntS'O'\nC\x08AAAAAAAAtR.", DAMAGED),  # 8 bytes as a pointer to an object
        (b"cnumpy\nndarray\n((I1\ntS'O'\nC\x08AAAAAAAAt\x81.", DAMAGED),  # the same by __new__
    ],
)
def test_a_file_can_neither_run_other_code_nor_forge_pointers(tmp_path, stream, message):
    (tmp_path / "x").write_bytes(stream)
    must_refuse(unpickle, tmp_path / "x", message)


def test_arrays_are_uint8_whatever_type_the_file_claims(tmp_path):
    (tmp_path / "x").write_bytes(b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I3\ntS'O'\ntR.")
    assert unpickle(tmp_path / "x").dtype == np.uint8


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_truncated_file_is_named(cifar100, keep):
    (cifar100 / "train").write_bytes((cifar100 / "train").read_bytes()[:keep])
    must_refuse(load_cifar100, request(cifar100.parent), r"cifar-100-python/train is damaged")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (batch(data=pixels(4)[:, :3000]), r"shape \(N, 3072\) but uint8 \(4, 3000\)"),
        (batch(data=[1, 2]), r"but a list of 2"),
        (batch(fine_labels=[0, 1]), r"4 images, but 'fine_labels' is a list of 2"),
        *(
            (batch(fine_labels=[0, 1, 2, wrong]), f"label {wrong} is not one of 0…9")
            for wrong in (10, -1, b"3")
        ),
        (batch(labels_key=b"labels"), r"no entry 'fine_labels'"),
        ([1, 2], r"no entry 'data'"),
        (batch(0), r"0 images"),
    ],
)
def test_wrong_content_is_named(cifar100, content, message):
    (cifar100 / "train").write_bytes(python2_pickle(content))
    must_refuse(load_cifar100, request(cifar100.parent), f"cifar-100-python/train.*{message}")
    (cifar100 / "meta").write_bytes(python2_pickle({b"fine_label_names": 3}))
    named = r"meta: 'fine_label_names' is not a list of class names"
    must_refuse(load_cifar100, request(cifar100.parent), named)
