"""Predictions of a run's classifier for a folder of pictures, as a file for other programs.

Shapes: B pictures at a time, S = side of the images that the encoder takes.
"""

import csv
import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from intnacl.console import progress
from intnacl.data.images import SUFFIXES, Broken, Item, attempt, is_image, walk_images
from intnacl.data.streamed import decoders_silenced
from intnacl.errors import InputError
from intnacl.evaluation.features import pixels
from intnacl.evaluation.precision import exact_float32
from intnacl.files import as_path, disk_errors, new_file
from intnacl.runs.measure import load_fitted
from intnacl.runs.opened import Run

Pixels = npt.NDArray[np.uint8]
BATCH = 64  # pictures decoded and classified together
HEADS = ("file", "class", "confidence")


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """A file of predictions."""

    out: Path
    images: int
    """Number of classified pictures, each of which is a row of the file."""
    broken: dict[str, str]
    """Pictures and folders that cannot be read and have no row: name -> reason."""


def predict(
    run: Run, pictures: str | Path, *, dataset: str | None = None, out: str | Path | None = None
) -> Predictions:
    """Classify the pictures below a folder, and write the file, class and confidence of each as CSV.

        predict(intnacl.open_run("runs/mine"), "new-pictures", out="new.csv")

    Args:
        run: A run; its classifier is fitted if that has not been done yet.
        pictures: A folder in any layout, or one picture. Files are named by their paths below the folder.
        dataset: The data set whose classes are predicted; by default the run's own.
        out: A .csv file, which appears when all pictures are classified; by default in the run's folder.
    """
    folder = as_path("folder", pictures)
    if out is None:
        run.folder.check_writable("give --out FILE.csv.")
    path = run.folder.predictions(folder) if out is None else as_path("out", out)
    if path.suffix != ".csv":
        raise InputError(f"out={str(path)!r} is not a table: end its name in .csv.")
    alone = folder.is_file() and is_image(folder)
    if not alone and not folder.is_dir():
        raise InputError(f"{folder.absolute()} is neither a folder nor a picture.")
    (name,) = run.named([dataset] if dataset else [])
    broken: dict[str, str] = {}

    def files() -> Iterator[Path]:
        def unreadable(error: OSError) -> None:
            broken[_below(Path(error.filename), folder)] = str(error.strerror)

        return iter([folder]) if alone else walk_images(folder, unreadable)

    total = sum(1 for _ in files())
    if not total:
        raise InputError(f"{folder} holds no pictures ({', '.join(sorted(SUFFIXES))}): give another folder.")
    classifier, classes = load_fitted(run, name)
    count = 0
    with disk_errors(path), ExitStack() as stack:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = stack.enter_context(new_file(path))
        text = io.TextIOWrapper(file, "utf-8", errors="backslashreplace", newline="")
        stack.callback(text.detach)  # flushes the text without closing the file
        table = csv.writer(text)
        table.writerow(HEADS)
        for context in (exact_float32(), torch.inference_mode(), decoders_silenced()):
            stack.enter_context(context)
        advance = stack.enter_context(progress("classifying pictures", total))
        for found in _decoded(files(), run.image_size):
            whole: dict[str, Pixels] = {}
            for picture, decoded in found.items():
                if isinstance(decoded, Broken):
                    broken[_below(picture, folder)] = decoded.reason
                else:
                    whole[_below(picture, folder)] = decoded
            if whole:
                x = pixels(torch.from_numpy(np.stack([*whole.values()])), run.device)
                best_B, class_B = classifier(x).softmax(dim=1).max(dim=1)
                for name, label, best in zip(whole, class_B.tolist(), best_B.tolist(), strict=True):
                    table.writerow((name, classes[label], f"{best:.6f}"))
            count += len(whole)
            advance(len(found))
        if not count:
            first = next((f"{name}: {reason}" for name, reason in broken.items()), "they are gone")
            raise InputError(f"{folder}: no picture could be decoded; the first: {first}.")
    return Predictions(out=path, images=count, broken=broken)


def _below(file: Path, folder: Path) -> str:
    """Return a file's path relative to the folder; its name if the file itself was given."""
    return file.name if file == folder else file.relative_to(folder).as_posix()


def _decoded(files: Iterator[Path], size: int) -> Iterator[dict[Path, Pixels | Broken]]:
    """Yield the pixels (3, S, S) of one batch of files after the other, decoded one batch ahead."""

    def decode(path: Path) -> Pixels | Broken:
        if not path.is_file():  # reading a pipe could block forever
            return Broken("not a regular file, or a broken link")
        try:
            return attempt(Item(path.name, path, -1), size)
        except InputError as error:  # it is not readable, or has been removed
            return Broken(str(error))

    def batch(paths: list[Path]) -> dict[Path, Pixels | Broken]:
        return dict(zip(paths, pool.map(decode, paths), strict=True))

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool, ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(batch, [*islice(files, BATCH)])
        while decoded := coming.result():
            coming = ahead.submit(batch, [*islice(files, BATCH)])
            yield decoded
