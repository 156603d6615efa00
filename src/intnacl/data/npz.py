"""`npz:PATH`: arrays saved by numpy.

A file holds `images` and, if labelled, `labels` (training images only), or both splits as `train_images`,
`train_labels`, `test_images`, `test_labels`; or PATH is a folder with `train.npz` and `test.npz`. `classes`
may hold the names. Images are uint8 of shape (N,H,W,3), (N,3,H,W), or grey (N,H,W), (N,H,W,1), (N,1,H,W).
"""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from intnacl.data.images import ImageSet, LoadRequest, numbered_classes
from intnacl.errors import InputError

REMEDY = (
    "save 'images' (for training alone) or 'train_images' and 'test_images' in it, or give a folder with "
    "train.npz and test.npz"
)


def load_npz(request: LoadRequest) -> ImageSet:
    """Read the split's arrays; nothing is unpickled."""
    assert request.path is not None
    places = _places(request.path)
    if request.split not in places:
        raise InputError(f"{request.path} holds no {request.split} split{_found(request.path)}: {REMEDY}.")
    path, prefix = places[request.split]
    images = _channels_first(_array(path, f"{prefix}images"), path)
    labels = _labels(path, prefix, len(images))
    classes = _classes(places, path) if labels is not None else ()
    return ImageSet(images=torch.from_numpy(images), labels=labels, classes=classes)


def _places(path: Path) -> dict[str, tuple[Path, str]]:
    """Split -> its file, and what its arrays' names begin with."""
    if path.is_dir():
        files = {split: (path / f"{split}.npz", "") for split in ("train", "test")}
        return {split: place for split, place in files.items() if place[0].exists()}
    names = _names(path)
    if "images" in names:
        return {"train": (path, "")}
    return {split: (path, f"{split}_") for split in ("train", "test") if f"{split}_images" in names}


def _found(path: Path) -> str:
    """What is there instead."""
    return "" if path.is_dir() else f", only {', '.join(_names(path)) or 'nothing'}"


def _names(path: Path) -> list[str]:
    with _opened(path) as archive:
        return list(archive.files)


def _array(path: Path, name: str) -> npt.NDArray[Any]:
    with _opened(path) as archive:
        if name not in archive.files:
            raise InputError(
                f"{path} has no array {name!r}; it holds {', '.join(archive.files) or 'nothing'}."
            )
        array: npt.NDArray[Any] = archive[name]
        return array


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            yield archive
    except FileNotFoundError:
        raise InputError(f"{path.absolute()} does not exist.") from None
    except InputError:
        raise
    except (
        OSError,
        ValueError,
        EOFError,
        TypeError,
        AttributeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise InputError(f"{path} is damaged or no .npz file ({error}).") from error


def _channels_first(images: npt.NDArray[Any], path: Path) -> npt.NDArray[np.uint8]:
    if images.dtype != np.uint8:
        raise InputError(f"{path}: images are {images.dtype}; save them as uint8, 0…255.")
    stacked = images[..., None] if images.ndim == 3 else images
    if stacked.ndim == 4 and stacked.shape[3] in (1, 3):
        stacked = stacked.transpose(0, 3, 1, 2)
    if stacked.ndim != 4 or stacked.shape[1] not in (1, 3) or 0 in stacked.shape:
        raise InputError(
            f"{path}: images have shape {images.shape}; wanted (N,H,W,3) or (N,3,H,W) with N > 0."
        )
    return np.repeat(stacked, 3, axis=1) if stacked.shape[1] == 1 else np.ascontiguousarray(stacked)


def _labels(path: Path, prefix: str, count: int) -> torch.Tensor | None:
    if f"{prefix}labels" not in _names(path):
        return None
    labels = _array(path, f"{prefix}labels")
    if labels.shape not in ((count,), (count, 1)) or labels.dtype.kind not in "iu":
        raise InputError(f"{path}: labels are {labels.dtype} {labels.shape}; wanted {count} integers.")
    if labels.min() < 0:
        raise InputError(f"{path}: a label is {labels.min()}; classes count from 0.")
    return torch.from_numpy(labels.reshape(-1).astype(np.int64))


def _classes(places: dict[str, tuple[Path, str]], path: Path) -> tuple[str, ...]:
    """The names in `classes` of its own file or the other split's, else numbers up to the largest label of
    both, so that these agree."""
    labels = [_array(p, f"{prefix}labels") for p, prefix in places.values() if f"{prefix}labels" in _names(p)]
    needed = max(int(part.max()) + 1 for part in labels if part.size and part.dtype.kind in "iu")
    files = dict.fromkeys([path, *(p for p, _ in places.values())])
    named = next((file for file in files if "classes" in _names(file)), None)
    if named is None:
        return numbered_classes(needed, path)
    names = _texts(_array(named, "classes"))
    if len(names) < needed:
        raise InputError(f"{named}: label {needed - 1} has no name; 'classes' holds {len(names)}.")
    return names


def _texts(array: npt.NDArray[Any]) -> tuple[str, ...]:
    """An array of any shape, of texts, bytes or numbers, as texts."""
    decoded = np.char.decode(array, "utf-8", "replace") if array.dtype.kind == "S" else array
    return tuple(str(name) for name in decoded.ravel())
