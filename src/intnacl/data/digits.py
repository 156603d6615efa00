"""scikit-learn's 1,797 handwritten digits, 8×8: embedded, so that everything runs without a download."""

import importlib.util
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from intnacl.data.images import ImageSet, LoadRequest

Floats = NDArray[np.float64]
CLASSES = tuple("0123456789")
TEST_EVERY = 5  # every fifth image of each class is for testing


def load_digits(request: LoadRequest) -> ImageSet:
    """Load grey levels 0…16 scaled to 0…255 in three channels; the split is fixed and stratified."""
    pixels_NHW, target_N = _pixels_and_labels()
    grey_NHW = torch.from_numpy(np.rint(pixels_NHW * (255 / 16)).astype(np.uint8))
    labels = torch.from_numpy(target_N.astype(np.int64))
    chosen = in_test(labels) == (request.split == "test")
    images = grey_NHW[chosen, None].expand(-1, 3, -1, -1).contiguous()
    return ImageSet(images=images, labels=labels[chosen], classes=CLASSES)


def _pixels_and_labels() -> tuple[Floats, Floats]:
    """Return the pixels in 0…16, (N, 8, 8), and the labels (N).

    scikit-learn's file is read directly, since importing the package takes a second; it is imported only if
    the file is not found.
    """
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():
        rows = np.loadtxt(file, delimiter=",")  # this also decompresses it
        return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]
    from sklearn.datasets import load_digits as load_embedded

    bunch = load_embedded()
    return bunch.images, bunch.target


def in_test(labels: torch.Tensor) -> torch.Tensor:
    """True for every fifth image of each class, counted in the order of `labels` (N)."""
    seen_before = torch.nn.functional.one_hot(labels).cumsum(0).gather(1, labels[:, None])[:, 0] - 1
    return seen_before % TEST_EVERY == TEST_EVERY - 1
