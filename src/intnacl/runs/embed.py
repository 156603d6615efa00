"""Features of images as a file for other programs.

Shapes: N images, F features.
"""

from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import Tensor

from intnacl.data import Dataset
from intnacl.errors import InputError, missing_extra
from intnacl.files import disk_errors, new_file

PIECE = 2**14  # rows that are written at a time
SUFFIXES = (".npz", ".parquet")


def check_output(path: Path) -> None:
    """Raise unless features can be written to a file of this name."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"out={str(path)!r} is no archive of arrays: end its name in .npz or .parquet.")
    if path.suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise missing_extra("pyarrow", "parquet", f"writing {path}") from None


def write_features(features_NF: Tensor, images: Dataset, path: Path) -> None:
    """Write `features` and, where there are any, `names`, `labels` and `classes`, as numpy reads them.

    A parquet file has the columns `features`, `name`, `label` and `class`, and is written in pieces.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as handle:
            write = _write_parquet if path.suffix == ".parquet" else _write_npz
            write(features_NF, images, handle)


def _write_npz(features_NF: Tensor, images: Dataset, handle: IO[bytes]) -> None:
    arrays: dict[str, Any] = {"features": features_NF.cpu().numpy()}
    if images.names:
        arrays["names"] = np.array(images.names)
    if images.labels is not None:
        arrays |= {"labels": images.labels.numpy(), "classes": np.array(images.classes)}
    np.savez(handle, **arrays)


def _write_parquet(features_NF: Tensor, images: Dataset, handle: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = [pa.field("features", pa.list_(pa.float32(), features_NF.shape[1]))]
    fields += [pa.field("name", pa.string())] if images.names else []
    fields += (
        [pa.field("label", pa.int64()), pa.field("class", pa.string())] if images.labels is not None else []
    )
    schema = pa.schema(fields)
    with pq.ParquetWriter(handle, schema) as out:
        for start in range(0, len(features_NF), PIECE):
            rows = slice(start, start + PIECE)
            values = pa.array(features_NF[rows].cpu().numpy().ravel())
            columns = [pa.FixedSizeListArray.from_arrays(values, features_NF.shape[1])]
            if images.names:
                columns.append(pa.array(list(images.names[rows])))
            if images.labels is not None:
                labels = images.labels[rows].tolist()
                columns += [pa.array(labels), pa.array([images.classes[label] for label in labels])]
            out.write_table(pa.table(columns, schema=schema))
