"""scikit-learn's 1,797 handwritten digits, 8×8: embedded, so that everything runs without a download."""

import numpy as np
import torch

from intnacl.data.images import ImageSet, LoadRequest

CLASSES = tuple("0123456789")
TEST_EVERY = 5  # of each class every fifth image is for testing


def load_digits(request: LoadRequest) -> ImageSet:
    """Load grey levels 0…16 scaled to 0…255 in three channels; the split is fixed and stratified."""
    from sklearn.datasets import load_digits as load_embedded

    bunch = load_embedded()
    grey_NHW = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8))
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    chosen = in_test(labels) == (request.split == "test")
    images = grey_NHW[chosen, None].expand(-1, 3, -1, -1).contiguous()
    return ImageSet(images=images, labels=labels[chosen], classes=CLASSES)


def in_test(labels: torch.Tensor) -> torch.Tensor:
    """True for every fifth image of each class, counted in the order of `labels` (N)."""
    seen_before = torch.nn.functional.one_hot(labels).cumsum(0).gather(1, labels[:, None])[:, 0] - 1
    return seen_before % TEST_EVERY == TEST_EVERY - 1
