"""Decoding of images to uint8 pixels: the central square of each, or random crops of its original pixels.

Shapes: N images, V crops of one, 3 channels, H rows, W columns, S = side of the square.
"""

import io
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from intnacl.console import progress
from intnacl.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

    from intnacl.data.streamed import StreamedImages

CHUNK = 512  # images in memory at a time
MOST_CLASSES = (
    1_000_000  # without names; a larger label is another kind of number, such as a date or an identifier
)
ORIENTATION, TURNED = 0x0112, (5, 6, 7, 8)  # the EXIF tag, and its values for quarter turns
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True, kw_only=True)
class LoadRequest:
    """The arguments of a loader: `path` follows the colon of `folder:PATH`; `size` None: the set's own."""

    split: str
    root: Path
    path: Path | None = None
    size: int | None = None
    download: bool = True
    room: float = math.inf
    """Bytes that the decoded images may take; a larger set is streamed."""

    def streams(self, count: int, size: int) -> bool:
        """True if `count` images of this side take more room than there is."""
        return count * 3 * size**2 > self.room


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """The result of a loader: images (N,3,H,W) uint8, labels (N) int64 or None, class names.

    `skipped` are broken images, name -> reason; `decoded` is true if images were decoded just now, not read
    from the cache. `names` are the images' paths below their folder, or the names of streamed images.
    """

    images: "Tensor | StreamedImages"
    labels: Tensor | None
    classes: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    decoded: bool = False
    names: Sequence[str] = ()


class Item(NamedTuple):
    """One encoded image: its name for messages, its bytes or its file, and its label (-1: none)."""

    name: str
    data: bytes | Path
    label: int


class Box(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


class Broken(NamedTuple):
    """The reason why an image could not be decoded."""

    reason: str

    @classmethod
    def because(cls, error: Exception) -> "Broken":
        """Describe the error, nearly any one, that a decoder raised for a damaged file."""
        reason = re.sub(r" <_io\.BytesIO[^>]*>", "", str(error))  # PIL names our buffer instead of the file
        return cls(f"{type(error).__name__}: {reason}")


def numbered_classes(count: int, origin: Path) -> tuple[str, ...]:
    """Return names for classes that have none: 0, 1, 2 …"""
    if count > MOST_CLASSES:
        raise InputError(f"{origin}: label {count - 1} is not a class: number them 0, 1, 2 …")
    return tuple(map(str, range(count)))


def walk_images(folder: Path, unreadable: Callable[[OSError], None]) -> Iterator[Path]:
    """Yield the visible images at any depth below a folder, sorted by name within each folder.

    The names of one folder are in memory at a time. Links to folders are followed, each folder once.
    `unreadable` is called with the error of a folder that cannot be listed.
    """
    seen: set[tuple[int, int]] = set()
    for place, folders, files in os.walk(folder, onerror=unreadable, followlinks=True):
        facts = os.stat(place)  # noqa: PTH116
        if (facts.st_dev, facts.st_ino) in seen:
            folders.clear()
            continue
        seen.add((facts.st_dev, facts.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (path for name in sorted(files) if is_image(path := Path(place, name)))


def is_image(path: Path) -> bool:
    """True if the file is named like an image and not hidden (macOS writes `._cat.jpg`)."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def decode(data: bytes, size: int, *, exact: bool = False) -> npt.NDArray[np.uint8]:
    """Decode to RGB (3,S,S): the central square, resized (bicubic, antialiased); `exact` accepts S×S only."""
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data)) as opened:
        image = to_rgb(ImageOps.exif_transpose(opened), opened.format)
    if exact and image.size != (size, size):
        raise ValueError(f"is {image.width}×{image.height}, not {size}×{size}")
    square = ImageOps.fit(image, (size, size), method=Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(square, dtype=np.uint8).transpose(2, 0, 1))


def decoder_version() -> str:
    """Return the decoder and its version: another version may round pixels differently."""
    from PIL import __version__, features

    jpeg = features.version("libjpeg_turbo")
    return f"Pillow {__version__}, {f'libjpeg-turbo {jpeg}' if jpeg else 'libjpeg'}"


def image_size(data: bytes) -> tuple[int, int]:
    """Return the width and height, as displayed, from the header of an encoded image."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as opened:
        width, height = opened.size
        return (height, width) if opened.getexif().get(ORIENTATION, 1) in TURNED else (width, height)


def decode_crops(data: bytes, boxes: Sequence[Box], out_V3SS: Tensor) -> None:
    """Write crops of an encoded image to `out`, each resized to S×S (bilinear, antialiased).

    A JPEG is decoded once, at 1/2, 1/4 or 1/8 of its size if every crop keeps at least S pixels per side.
    """
    from PIL import Image, ImageOps

    size = out_V3SS.shape[2]
    with Image.open(io.BytesIO(data)) as opened:
        upright = opened.getexif().get(ORIENTATION, 1) == 1
        scale, width = 1, opened.width
        least = min(min(box.width, box.height) for box in boxes) // size
        if least >= 2 and upright and opened.format == "JPEG":
            scale = max(power for power in (2, 4, 8) if power <= least)
            opened.draft(None, (opened.width // scale, opened.height // scale))
            scale = 1 if opened.width == width else scale
        image = to_rgb(opened if upright else ImageOps.exif_transpose(opened), opened.format)
        pixels_HW3 = torch.from_numpy(np.asarray(image))  # decodes the image while its file is open
    if scale > 1:  # a scaled box may start between pixels, which only Pillow supports
        for out_3SS, box in zip(out_V3SS, boxes, strict=True):
            edges = box.left, box.top, box.left + box.width, box.top + box.height
            left, top, right, bottom = (edge / scale for edge in edges)
            scaled = (left, top, min(right, image.width), min(bottom, image.height))
            crop = image.resize((size, size), Image.Resampling.BILINEAR, box=scaled)
            out_3SS.copy_(torch.from_numpy(np.asarray(crop)).permute(2, 0, 1))
        return
    for out_3SS, (top, left, height, width) in zip(out_V3SS, boxes, strict=True):
        crop_3HW = pixels_HW3[top : top + height, left : left + width].permute(2, 0, 1)
        resized = functional.interpolate(crop_3HW[None], (size, size), mode="bilinear", antialias=True)
        out_3SS.copy_(resized[0])


def to_rgb(image: "Image", kind: str | None) -> "Image":
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
    return image if image.mode == "RGB" else image.convert("RGB")


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
        # These are about large images and damaged metadata, which is not used here.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        rest = iter(items)
        while chunk := list(islice(rest, CHUNK)):
            for item, pixels in zip(
                chunk, pool.map(lambda i: attempt(i, size, exact=exact), chunk), strict=True
            ):
                if isinstance(pixels, Broken):
                    skipped[item.name] = pixels.reason
                else:
                    out.write(pixels.data)
                    labels.append(item.label)
            advance(len(chunk))
    return labels, skipped


def attempt(item: Item, size: int, *, exact: bool = False) -> npt.NDArray[np.uint8] | Broken:
    """Decode an image as `decode` does; return `Broken` if it is damaged, raise if it cannot be read."""
    try:
        data = item.data if isinstance(item.data, bytes) else item.data.read_bytes()
    except OSError as error:  # a fault of the system, not of the image: it must not shrink a data set
        raise InputError(f"cannot read {item.data!s}: {error.strerror or error}.") from error
    try:
        return decode(data, size, exact=exact)
    except MemoryError:
        raise
    except Exception as error:
        return Broken.because(error) if data else Broken("empty")
