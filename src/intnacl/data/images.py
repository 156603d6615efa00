"""From encoded images to one uint8 array: decoded in threads and cropped to squares, broken ones skipped.

Shapes: N images, 3 channels, H rows, W columns, S = side of the square.
"""

import io
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from intnacl.console import progress
from intnacl.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

CHUNK = 512  # images in memory at a time
MOST_CLASSES = 1_000_000  # without names; a larger label is some other number: a date, an identifier
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True, kw_only=True)
class LoadRequest:
    """The arguments of a loader: `path` follows the colon of `folder:PATH`; `size` None is the set's own."""

    split: str
    root: Path
    path: Path | None = None
    size: int | None = None
    download: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """The result of a loader: images (N,3,H,W) uint8, labels (N) int64 or None, class names.

    `skipped` are broken images, name -> reason; `decoded` is true where they were found just now and
    are not from the cache. `names` are the paths of a folder's images below it; other sets have none.
    """

    images: Tensor
    labels: Tensor | None
    classes: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    decoded: bool = False
    names: tuple[str, ...] = ()


class Item(NamedTuple):
    """One encoded image: the name to show, its bytes or the file that holds them, its label (-1: none)."""

    name: str
    data: bytes | Path
    label: int


class Broken(NamedTuple):
    """The reason why an image could not be decoded."""

    reason: str


def numbered_classes(count: int, origin: Path) -> tuple[str, ...]:
    """Return names for classes that have none: 0, 1, 2 …"""
    if count > MOST_CLASSES:
        raise InputError(f"{origin}: label {count - 1} is no class: number them 0, 1, 2 …")
    return tuple(map(str, range(count)))


def is_image(path: Path) -> bool:
    """True if the file is named like an image and not hidden (macOS writes `._cat.jpg`)."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def decode(data: bytes, size: int, *, exact: bool = False) -> npt.NDArray[np.uint8]:
    """Decode to RGB (3,S,S): the central square, resized (bicubic, antialiased); `exact` takes S×S alone."""
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data)) as opened:
        image = _rgb(ImageOps.exif_transpose(opened), opened.format)
    if exact and image.size != (size, size):
        raise ValueError(f"is {image.width}×{image.height}, not {size}×{size}")
    square = ImageOps.fit(image, (size, size), method=Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(square, dtype=np.uint8).transpose(2, 0, 1))


def _rgb(image: "Image", kind: str | None) -> "Image":
    """Convert to 8-bit RGB.

    Pillow's own conversion clips 16-bit grey to white, and Pillow holds a 16-bit PGM as 32-bit grey.
    """
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and kind in ("PPM", "PNG")):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"32-bit grey (mode {image.mode}) has no known range: save it with 8 or 16 bits")
    if "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def decode_all(
    items: Iterable[Item], total: int, out: IO[bytes], *, size: int, exact: bool = False
) -> tuple[list[int], dict[str, str]]:
    """Append the pixels (3,S,S) of all images to `out` in order; return their labels and the broken ones."""
    labels: list[int] = []
    skipped: dict[str, str] = {}
    workers = min(16, os.cpu_count() or 1)
    with (
        warnings.catch_warnings(),
        ThreadPoolExecutor(workers) as pool,
        progress("decoding images", total) as advance,
    ):
        # Of large images, and of damaged notes beside the pixels, which nobody reads here.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        rest = iter(items)
        while chunk := list(islice(rest, CHUNK)):
            for item, pixels in zip(chunk, pool.map(lambda i: _attempt(i, size, exact), chunk), strict=True):
                if isinstance(pixels, Broken):
                    skipped[item.name] = pixels.reason
                else:
                    out.write(pixels.data)
                    labels.append(item.label)
            advance(len(chunk))
    return labels, skipped


def _attempt(item: Item, size: int, exact: bool) -> npt.NDArray[np.uint8] | Broken:
    try:
        data = item.data if isinstance(item.data, bytes) else item.data.read_bytes()
    except OSError as error:  # a fault of the system, not of the image: it must not shrink a data set
        raise InputError(f"cannot read {item.data!s}: {error.strerror or error}.") from error
    try:
        return decode(data, size, exact=exact)
    except MemoryError:
        raise
    except Exception as error:  # decoders of damaged files raise nearly anything
        reason = re.sub(r" <_io\.BytesIO[^>]*>", "", str(error))  # PIL names our buffer in place of the file
        return Broken(f"{type(error).__name__}: {reason}" if data else "empty")
