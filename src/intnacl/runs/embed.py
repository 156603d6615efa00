"""Features of images as a file for other programs.

Shapes: N images, F features.
"""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from intnacl.data import Dataset
from intnacl.files import disk_errors, new_file


def write_features(features_NF: Tensor, images: Dataset, path: Path) -> None:
    """Write `features` and, where there are any, `names`, `labels` and `classes`, as numpy reads them."""
    arrays: dict[str, Any] = {"features": features_NF.cpu().numpy()}
    if images.names:
        arrays["names"] = np.array(images.names)
    if images.labels is not None:
        arrays |= {"labels": images.labels.numpy(), "classes": np.array(images.classes)}
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as handle:
            np.savez(handle, **arrays)
