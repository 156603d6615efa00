"""Features of images as a file for other programs, and a picture of nearest neighbours to judge them by.

Shapes: N images, F features, Q of the images to show, K neighbours of each.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from intnacl.data import Dataset
from intnacl.files import disk_errors, new_file
from intnacl.plots.gallery import draw_gallery

SHOWN, NEIGHBOURS = 8, 6  # rows of the picture, and neighbours in each


def write_features(features_NF: Tensor, images: Dataset, path: Path) -> None:
    """`features` and, where there are any, `names`, `labels` and `classes`, as numpy reads them."""
    arrays: dict[str, Any] = {"features": features_NF.cpu().numpy()}
    if images.names:
        arrays["names"] = np.array(images.names)
    if images.labels is not None:
        arrays |= {"labels": images.labels.numpy(), "classes": np.array(images.classes)}
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as handle:
            np.savez(handle, **arrays)


def neighbours(features_NF: Tensor, rows_Q: Tensor, count: int) -> Tensor:
    """The `count` other images nearest by cosine to each of `rows_Q`, nearest first: (Q, K)."""
    unit_NF = functional.normalize(features_NF, dim=1)
    cosine_QN = unit_NF[rows_Q] @ unit_NF.T
    cosine_QN[torch.arange(len(rows_Q)), rows_Q] = -torch.inf  # an image is no neighbour of itself
    return cosine_QN.topk(min(count, len(features_NF) - 1), dim=1).indices


def draw_neighbours(features_NF: Tensor, images: Dataset, path: Path) -> None:
    """Some images, each with its nearest neighbours, as a grid."""
    rows_Q = images.spread(SHOWN)
    near_QK = neighbours(features_NF, rows_Q.to(features_NF.device), NEIGHBOURS).cpu()
    columns = {"image": images.images[rows_Q]}
    columns |= {f"nearest {k}": images.images[near_Q] for k, near_Q in enumerate(near_QK.T, start=1)}
    with disk_errors(path):
        draw_gallery(columns, images.captions(rows_Q), path)
