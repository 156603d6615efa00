"""Features of images as a file for other programs, computed and stored piece by piece.

Pieces lie in a folder FILE.pieces until the file is written. A stopped command resumes from them, and only
one is in memory at a time.

Shapes: N images, n images of one piece, F features.
"""

import json
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from intnacl.console import watched
from intnacl.data import Dataset
from intnacl.data.images import decoder_version
from intnacl.data.streamed import StreamedImages, part_of
from intnacl.errors import InputError, missing_extra
from intnacl.evaluation.features import extract
from intnacl.evaluation.precision import exact_float32
from intnacl.files import disk_errors, lock, make_folder, new_file, read_json, write_json
from intnacl.runs.folder import LOCK_PATIENCE_S
from intnacl.runs.opened import FEATURE_BATCH, Run

PIECE = 2**14  # images whose features are in memory at a time
SUFFIXES = (".npz", ".parquet")


def check_output(path: Path) -> None:
    """Raise unless features can be written to a file of this name."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"out={str(path)!r} is not a file of features: end its name in .npz or .parquet.")
    if path.suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise missing_extra("pyarrow", "parquet", f"writing {path}") from None


class Features:
    """The features of a data set in stored pieces; iterating reads piece after piece, (n, F) float32."""

    def __init__(self, folder: Path, count: int, rows: int) -> None:
        self.folder, self.count, self.rows = folder, count, rows
        self.broken: dict[str, str] = {}
        """Damaged images, whose rows hold the features of replacements: name -> reason."""

    def __iter__(self) -> Iterator[Tensor]:
        for start in range(0, self.count, self.rows):
            yield torch.from_numpy(np.load(self.path(start)))

    @property
    def shape(self) -> tuple[int, int]:
        """(N, F)."""
        return self.count, np.load(self.path(0), mmap_mode="r").shape[1]

    def path(self, start: int) -> Path:
        """The file of the piece that begins with this image."""
        return self.folder / f"{start:09d}.npy"


@contextmanager
def features_in_pieces(run: Run, images: Dataset, path: Path) -> Iterator[Features]:
    """Compute the features that are to be written to `path`, except the pieces stored before a stop.

    The pieces are removed when the block succeeds. If it fails, they are kept, and the same call resumes from
    them, unless encoder, images or decoder have changed.
    """
    pieces = Features(path.with_name(f"{path.name}.pieces"), len(images), PIECE)
    begun = {
        "encoder": run.encoder_sha256,
        "images": [images.name, images.split, images.checksum, len(images)],
        "decoder": decoder_version(),
        "rows": PIECE,
    }
    make_folder(pieces.folder)
    with lock(pieces.folder / "lock", timeout=LOCK_PATIENCE_S) as state:
        if state == "busy":
            raise InputError(f"another process is writing {path}: wait until it ends, or take another --out.")
        if read_json(pieces.folder / "begun.json", dict[str, Any]) != begun:
            for old in pieces.folder.glob("[0-9]*"):
                old.unlink()
            write_json(pieces.folder / "begun.json", begun)
        left = [start for start in range(0, len(images), PIECE) if not pieces.path(start).exists()]
        count = sum(min(PIECE, len(images) - start) for start in left)
        with exact_float32(), watched(run.encoder, f"features of {images.name}", count):
            for start in left:
                some = part_of(images.images, torch.arange(start, min(len(images), start + PIECE)))
                features_nF = extract(run.encoder, some, batch_size=FEATURE_BATCH, device=run.device)
                if isinstance(some, StreamedImages) and some.broken:
                    write_json(pieces.path(start).with_suffix(".json"), some.broken)
                with disk_errors(path), new_file(pieces.path(start)) as handle:
                    np.save(handle, features_nF.cpu().numpy())
        for damaged in sorted(pieces.folder.glob("[0-9]*.json")):
            pieces.broken |= json.loads(damaged.read_bytes())
        yield pieces
        shutil.rmtree(pieces.folder, ignore_errors=True)


def write_features(features: Features, images: Dataset, path: Path) -> None:
    """Write `features` and, if the images have them, `names`, `labels` and `classes`, as numpy arrays.

    A parquet file has the columns `features`, `name`, `label` and `class`. Both are written piece by piece.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as handle:
            write = _write_parquet if path.suffix == ".parquet" else _write_npz
            write(features, images, handle)


def _write_npz(features: Features, images: Dataset, handle: IO[bytes]) -> None:
    """Write the file that `np.savez` would write, without having whole arrays in memory."""

    def write(name: str, shape: tuple[int, ...], parts: Iterator[npt.NDArray[Any]]) -> None:
        first = next(parts)
        header = {"descr": first.dtype.str, "fortran_order": False, "shape": shape}
        with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
            np.lib.format.write_array_header_1_0(out, header)
            out.write(first.tobytes())
            for part in parts:
                out.write(part.tobytes())

    def names() -> Iterator[Sequence[str]]:
        return (images.names[start : start + PIECE] for start in range(0, len(images), PIECE))

    with zipfile.ZipFile(handle, "w") as archive:
        write("features", features.shape, (part.numpy() for part in features))
        if images.names:
            longest = max(map(len, (name for part in names() for name in part)))
            write("names", (len(images),), (np.array(part, f"<U{longest}") for part in names()))
        if images.labels is not None:
            write("labels", (len(images),), iter([images.labels.numpy()]))
            write("classes", (len(images.classes),), iter([np.array(images.classes)]))


def _write_parquet(features: Features, images: Dataset, handle: IO[bytes]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    width = features.shape[1]
    fields = [pa.field("features", pa.list_(pa.float32(), width))]
    fields += [pa.field("name", pa.string())] if images.names else []
    fields += (
        [pa.field("label", pa.int64()), pa.field("class", pa.string())] if images.labels is not None else []
    )
    schema = pa.schema(fields)
    with pq.ParquetWriter(handle, schema) as out:
        start = 0
        for features_nF in features:
            rows = slice(start, start := start + len(features_nF))
            columns = [pa.FixedSizeListArray.from_arrays(pa.array(features_nF.numpy().ravel()), width)]
            if images.names:
                columns.append(pa.array(list(images.names[rows])))
            if images.labels is not None:
                labels = images.labels[rows].tolist()
                columns += [pa.array(labels), pa.array([images.classes[label] for label in labels])]
            out.write_table(pa.table(columns, schema=schema))
