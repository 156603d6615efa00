"""`parquet:PATH`: a Hugging Face data set in parquet files.

PATH is one file (training images), or a folder with `train*.parquet` and `test*.parquet` (or `val*`): in
it, in its `data/`, or in sub-folders of these names. The image column is a struct of `bytes` and `path`, or
plain bytes; class names come from the files' own metadata.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from intnacl.data.cache import Source, cached
from intnacl.data.images import ImageSet, Item, LoadRequest, decode_all, numbered_classes
from intnacl.data.index import Listing, Packed, indexed
from intnacl.data.streamed import streamed_set
from intnacl.errors import InputError, missing_extra
from intnacl.files import check_file, fits, parse_json

DEFAULT_SIZE = 32
IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")
PREFIXES = {"train": ("train",), "test": ("test", "val")}
ROWS = 512  # rows read at a time


def load_parquet(request: LoadRequest) -> ImageSet:
    """Decode the split's images to squares of `size`, their centres, through the cache.

    Parquet compresses many rows together, so no row can be read by itself: images that are streamed are first
    copied to the cache, still encoded.
    """
    assert request.path is not None
    files = find_files(request.path, request.split)
    others = [file for split in PREFIXES for file in _files_of(request.path, split)]
    size = request.size or DEFAULT_SIZE
    classes = _classes(list(dict.fromkeys([*files, *others])))
    source = Source(
        name="parquet",
        origin=request.path,
        split=request.split,
        size=size,
        files=files,
        classes=classes,
    )
    items = (item for file in files for item in _items(file, len(classes)))
    total = sum(_open(file).metadata.num_rows for file in files)
    if request.streams(total, size):

        def listing(entry: Path) -> Listing:
            packed = Packed(entry / "packed.bin")
            return Listing(places=packed.places(items), total=total, shards=[packed.path], sources=files)

        index = indexed(request.root, "parquet", request.path, request.split, listing, sources=files)
        return streamed_set(index, size, classes)
    return cached(request.root, source, lambda out: decode_all(items, total, out, size=size))


def find_files(path: Path, split: str) -> list[Path]:
    """Return the parquet files of the split; if no file is named after a split, all are for training."""
    if not path.exists():
        raise InputError(f"{path.absolute()} does not exist.")
    named = _files_of(path, split)
    if named:
        return named
    unnamed = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    if split == "train" and unnamed and not _files_of(path, "test"):
        return unnamed
    raise InputError(f"{path} has no {split} split: give a folder with train*.parquet and test*.parquet.")


def _files_of(path: Path, split: str) -> list[Path]:
    for prefix in PREFIXES[split]:
        for pattern in (f"{prefix}*.parquet", f"data/{prefix}*.parquet", f"{prefix}*/*.parquet"):
            if found := sorted(path.glob(pattern)):
                return found
    return []


def _open(file: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing_extra("pyarrow", "parquet", f"reading {file}") from None
    check_file(file)
    with _damage(f"{file} is damaged or not a parquet file"):
        opened = pyarrow.parquet.ParquetFile(file)
        opened.schema_arrow.names  # noqa: B018 - a damaged schema raises when it is first read
        return opened


@contextmanager
def _damage(what: str) -> Iterator[None]:
    """Turn any error that pyarrow raises for a damaged file into an InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{what} ({error}).") from error


def _column(file: Path, choices: tuple[str, ...]) -> str | None:
    names = _open(file).schema_arrow.names
    return next((name for name in choices if name in names), None)


def _classes(files: list[Path]) -> tuple[str, ...]:
    """Return names from the metadata, else numbers up to the largest label of all files of both splits."""
    for file in files:
        column, metadata = _column(file, LABEL_COLUMNS), _open(file).schema_arrow.metadata or {}
        with suppress(ValueError, KeyError, TypeError):  # a file may have no such metadata
            features = parse_json(metadata.get(b"huggingface", b"{}"))["info"]["features"]
            names = features[column]["names"]
            if names and fits(names, list[str]):
                return tuple(names)
    largest = max((max(_labels(file), default=-1) for file in files), default=-1)
    return numbered_classes(largest + 1, files[0].parent)


def _labels(file: Path) -> list[int]:
    """Return the labels of all rows, -1 for a row without one; empty if the file has no such column."""
    column = _column(file, LABEL_COLUMNS)
    if column is None:
        return []
    with _damage(f"{file}: the column {column!r} is damaged"):
        values = _open(file).read([column])[column].to_pylist()
    labels = [-1 if label is None else label for label in values]
    if not all(isinstance(label, int) for label in labels):
        raise InputError(f"{file}: the column {column!r} does not hold integers.")
    return labels


def _items(file: Path, classes: int) -> Iterator[Item]:
    column = _column(file, IMAGE_COLUMNS)
    if column is None:
        raise InputError(
            f"{file} has no column {' or '.join(IMAGE_COLUMNS)}; it has {_open(file).schema_arrow.names}."
        )
    labels = _labels(file) or [-1] * _open(file).metadata.num_rows
    wrong = [row for row, label in enumerate(labels) if not 0 <= label < classes]
    if wrong and (len(wrong) < len(labels) or set(labels) != {-1}):  # a file may have no labels at all
        raise InputError(f"{file}, row {wrong[0]}: label {labels[wrong[0]]} is not one of 0…{classes - 1}.")
    row, batches = 0, _open(file).iter_batches(ROWS, columns=[column])
    while True:
        with _damage(f"{file} is damaged at row {row}"):
            batch = next(batches, None)
            values = [] if batch is None else batch.column(column).to_pylist()
            if row + len(values) > len(labels):
                raise ValueError(f"it holds more than the {len(labels)} rows that it claims")
        if not values:
            return
        for value in values:
            data = value.get("bytes") if isinstance(value, dict) else value
            yield Item(f"{file.name} row {row}", data if isinstance(data, bytes) else b"", labels[row])
            row += 1
