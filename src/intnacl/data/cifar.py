"""CIFAR-10 and CIFAR-100 from the official python archives or their unpacked folders.

The batches are Python 2 pickles. They are read by an unpickler that builds uint8 arrays and plain values
only, so that a hostile file is refused before any of its code runs.
"""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from intnacl.data.download import Archive, unpacked
from intnacl.data.images import ImageSet, LoadRequest
from intnacl.errors import InputError
from intnacl.files import check_file

PIXELS = 3 * 32 * 32


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The files of one of the two sets, and the keys of its labels and class names."""

    archive: Archive
    batches: dict[str, tuple[str, ...]]
    labels_key: str
    meta: str
    classes_key: str


CIFAR = {
    "cifar10": Layout(
        archive=Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            md5="c58f30108f718f92721af3b95e74349a",
            folder="cifar-10-batches-py",
        ),
        batches={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
        labels_key="labels",
        meta="batches.meta",
        classes_key="label_names",
    ),
    "cifar100": Layout(
        archive=Archive(
            url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
            folder="cifar-100-python",
        ),
        batches={"train": ("train",), "test": ("test",)},
        labels_key="fine_labels",
        meta="meta",
        classes_key="fine_label_names",
    ),
}


def load_cifar10(request: LoadRequest) -> ImageSet:
    """Load one split of 60,000 images of 10 classes, 50,000 of them for training."""
    return load_cifar(CIFAR["cifar10"], request)


def load_cifar100(request: LoadRequest) -> ImageSet:
    """Load one split of 60,000 images of 100 classes (the fine labels), 50,000 of them for training."""
    return load_cifar(CIFAR["cifar100"], request)


def load_cifar(layout: Layout, request: LoadRequest) -> ImageSet:
    """Read every batch of the split."""
    folder = unpacked(layout.archive, request.root, download=request.download)
    meta, key = folder / layout.meta, layout.classes_key
    names = _entry(unpickle(meta), key, meta)
    if not isinstance(names, list) or not names:
        raise InputError(f"{meta}: {key!r} is not a list of class names.")
    classes = tuple(_text(name) for name in names)
    batches = [_read_batch(folder / name, layout, len(classes)) for name in layout.batches[request.split]]
    images = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([labels for _, labels in batches])
    return ImageSet(images=torch.from_numpy(images), labels=torch.from_numpy(labels), classes=classes)


def _read_batch(
    path: Path, layout: Layout, classes: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    batch = unpickle(path)
    pixels, labels = _entry(batch, "data", path), _entry(batch, layout.labels_key, path)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise InputError(
            f"{path}: 'data' is not a uint8 array of shape (N, {PIXELS}) but {_describe(pixels)}."
        )
    if not isinstance(labels, list) or len(labels) != len(pixels) or not labels:
        raise InputError(f"{path}: {len(pixels)} images, but {layout.labels_key!r} is {_describe(labels)}.")
    wrong = [label for label in labels if type(label) is not int or not 0 <= label < classes]
    if wrong:
        raise InputError(f"{path}: label {wrong[0]!r} is not one of 0…{classes - 1}.")
    return pixels, np.array(labels, dtype=np.int64)


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    return f"a list of {len(value)}" if isinstance(value, list) else type(value).__name__


def _entry(content: object, key: str, path: Path) -> Any:
    entries = {_text(name): value for name, value in content.items()} if isinstance(content, dict) else {}
    if key not in entries:
        raise InputError(f"{path} has no entry {key!r}: it is not the CIFAR file of that name.")
    return entries[key]


def _text(name: object) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def unpickle(path: Path) -> object:
    """Read a CIFAR pickle; anything but dicts, lists, strings, numbers and uint8 arrays is refused."""
    try:
        if path.exists():
            check_file(path)
        with path.open("rb") as file:
            return _Unpickler(file, path).load()
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(
            f"{path} is missing: delete {path.parent} and unpack the official archive again."
        ) from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise InputError(f"{path} is damaged or no CIFAR file ({type(error).__name__}: {error}).") from error


class _Unpickler(pickle.Unpickler):
    """Allows only the three names by which a uint8 array is pickled."""

    def __init__(self, file: Any, path: Path) -> None:
        super().__init__(file, encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a pickled global name, if it is one of the three."""
        if (module, name) not in _KNOWN:
            raise InputError(
                f"{self._path} asks for {module}.{name}, which no CIFAR file needs: refused, no code ran."
            )
        return _KNOWN[module, name]


def _empty(*_: object) -> npt.NDArray[np.uint8]:
    """Stand in for numpy's _reconstruct: an array without content yet, whatever type the file claims."""
    return np.empty(0, np.uint8)


def _uint8(code: bytes | str, *_: object) -> np.dtype[np.uint8]:
    """Stand in for numpy.dtype, and refuse every type but bytes, such as Python objects."""
    if code not in (b"u1", "u1"):
        raise ValueError(f"array of type {code!r}")
    return np.dtype(np.uint8)


# None of these is a callable of numpy: a file that could call numpy.ndarray on its own bytes as an array of
# objects could forge pointers to any address.
_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy._core.multiarray", "_reconstruct"): _empty,
    ("numpy", "ndarray"): "numpy.ndarray",  # an argument of _reconstruct; a string cannot be called
    ("numpy", "dtype"): _uint8,
}
