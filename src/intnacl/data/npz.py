"""`npz:PATH`: arrays saved by numpy.

A file holds `images` and, if labelled, `labels` (training images only), or both splits as `train_images`,
`train_labels`, `test_images`, `test_labels`; or PATH is a folder with `train.npz` and `test.npz`. `classes`
may hold the names. Images are uint8 of shape (N,H,W,3), (N,3,H,W), or grey (N,H,W), (N,H,W,1), (N,1,H,W).
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from intnacl.data.images import ImageSet, LoadRequest, numbered_classes
from intnacl.errors import InputError
from intnacl.files import check_file

REMEDY = (
    "save 'images' (for training alone) or 'train_images' and 'test_images' in it, or give a folder with "
    "train.npz and test.npz"
)


class Archives(ExitStack):
    """The .npz files of one load: each is opened once, on first use, and closed at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: dict[Path, Any] = {}

    def names(self, path: Path) -> list[str]:
        """Return the names of a file's arrays."""
        if path not in self._opened:
            check_file(path)
            try:
                file = self.enter_context(path.open("rb"))
                opened = np.load(file, allow_pickle=False)
                if not isinstance(opened, np.lib.npyio.NpzFile):
                    raise ValueError("one array without a name")
                self._opened[path] = self.enter_context(opened)
            except Exception as error:
                raise _damage(path, error) from error
        return list(self._opened[path].files)

    def read(self, path: Path, name: str) -> npt.NDArray[Any]:
        """Return one array of a file."""
        names = self.names(path)
        if name not in names:
            raise InputError(f"{path} has no array {name!r}; it holds {', '.join(names) or 'nothing'}.")
        try:
            array: npt.NDArray[Any] = self._opened[path][name]
            if not isinstance(array, np.ndarray):  # numpy returns the bytes of a member that is not an array
                raise ValueError(f"{name!r} is not an array")
        except Exception as error:
            raise _damage(path, error) from error
        return array


def _damage(path: Path, error: Exception) -> InputError:
    """Return the InputError for an error, nearly any one, that numpy or zipfile raised for a damaged file."""
    if isinstance(error, MemoryError | OverflowError):  # a damaged header may claim any shape
        return InputError(f"{path} is damaged, or larger than the memory ({error}).")
    return InputError(f"{path} is damaged or not an .npz file ({error}).")


def load_npz(request: LoadRequest) -> ImageSet:
    """Read the split's arrays from one open file, or from one for each split; nothing is unpickled.

    Class names are in `classes` in the split's file or the other one's; otherwise classes are numbered up to
    the largest label of both splits, so that the splits agree.
    """
    assert request.path is not None
    with Archives() as archives:
        places = _places(request.path, archives)
        if request.split not in places:
            arrays = [] if request.path.is_dir() else archives.names(request.path)
            found = "" if request.path.is_dir() else f", only {', '.join(arrays) or 'nothing'}"
            raise InputError(f"{request.path} holds no {request.split} split{found}: {REMEDY}.")
        path, prefix = places[request.split]
        images = _channels_first(archives.read(path, f"{prefix}images"), path)
        if f"{prefix}labels" not in archives.names(path):
            return ImageSet(images=torch.from_numpy(images), labels=None, classes=())
        labels = _labels(archives.read(path, f"{prefix}labels"), len(images), path)
        needed = int(labels.max()) + 1
        for other, prefix in places.values():
            if f"{prefix}labels" in archives.names(other) and (other, prefix) != places[request.split]:
                others = archives.read(other, f"{prefix}labels")
                if others.size and others.dtype.kind in "iu":
                    needed = max(needed, int(others.max()) + 1)
        files = dict.fromkeys([path, *(file for file, _ in places.values())])
        named = next((file for file in files if "classes" in archives.names(file)), None)
        if named is None:
            classes = numbered_classes(needed, path)
        else:
            classes = _texts(archives.read(named, "classes"))
            if len(classes) < needed:
                raise InputError(f"{named}: label {needed - 1} has no name; 'classes' holds {len(classes)}.")
        return ImageSet(images=torch.from_numpy(images), labels=torch.from_numpy(labels), classes=classes)


def _places(path: Path, archives: Archives) -> dict[str, tuple[Path, str]]:
    """Return each split's file and the prefix of its arrays' names."""
    if path.is_dir():
        files = {split: path / f"{split}.npz" for split in ("train", "test")}
        return {split: (file, "") for split, file in files.items() if file.exists()}
    names = archives.names(path)
    if "images" in names:
        return {"train": (path, "")}
    return {split: (path, f"{split}_") for split in ("train", "test") if f"{split}_images" in names}


def _channels_first(images: npt.NDArray[Any], path: Path) -> npt.NDArray[np.uint8]:
    if images.dtype != np.uint8:
        raise InputError(f"{path}: images are {images.dtype}; save them as uint8, 0…255.")
    stacked = images[..., None] if images.ndim == 3 else images
    if stacked.ndim == 4 and stacked.shape[3] in (1, 3):
        stacked = stacked.transpose(0, 3, 1, 2)
    if stacked.ndim != 4 or stacked.shape[1] not in (1, 3) or 0 in stacked.shape:
        raise InputError(
            f"{path}: images have shape {images.shape}; expected (N,H,W,3) or (N,3,H,W) with N > 0."
        )
    return np.repeat(stacked, 3, axis=1) if stacked.shape[1] == 1 else np.ascontiguousarray(stacked)


def _labels(labels: npt.NDArray[Any], count: int, path: Path) -> npt.NDArray[np.int64]:
    if labels.shape not in ((count,), (count, 1)) or labels.dtype.kind not in "iu":
        raise InputError(f"{path}: labels are {labels.dtype} {labels.shape}; expected {count} integers.")
    if labels.min() < 0:
        raise InputError(f"{path}: a label is {labels.min()}; classes count from 0.")
    return labels.reshape(-1).astype(np.int64)


def _texts(array: npt.NDArray[Any]) -> tuple[str, ...]:
    """Return the elements of an array of strings, bytes or numbers as strings."""
    decoded = np.char.decode(array, "utf-8", "replace") if array.dtype.kind == "S" else array
    return tuple(str(name) for name in decoded.ravel())
