"""Images that stay encoded on the disk, behind the interface of a uint8 tensor (N, 3, S, S).

Shapes: N images, B of them at a time, V crops of each, S = side of the squares, K uniform numbers a crop.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from intnacl.data.augment import crop_box
from intnacl.data.augmentations import AugmentConfig
from intnacl.data.images import Box, Broken, ImageSet, decode, decode_crops
from intnacl.data.index import Index, Names
from intnacl.errors import InputError

TRIES = 1000  # replacements that are tried for a damaged image


class StreamedImages:
    """The images of an index: subscripting decodes them to the uint8 squares that a resident set would have.

    A damaged image is replaced by the next intact one of its class, so that its label stays right. Every rank
    and every resumed run takes the same replacement.
    """

    dtype = torch.uint8
    ndim = 4
    device = torch.device("cpu")
    is_cuda = False

    def __init__(self, index: Index, size: int, rows: Tensor | None = None) -> None:
        self.index, self.size, self._rows = index, size, rows
        self.broken: dict[str, str] = {}
        """Damaged images that this process has found: name -> reason."""

    def __len__(self) -> int:
        return len(self.index if self._rows is None else self._rows)

    @property
    def shape(self) -> torch.Size:
        """(N, 3, S, S)."""
        return torch.Size((len(self), 3, self.size, self.size))

    @property
    def nbytes(self) -> int:
        """The number of bytes that all images would take in memory."""
        return self.shape.numel()

    @property
    def names(self) -> Names:
        """The names of the images."""
        return self.index.names if self._rows is None else self.index.names.part(self._rows.numpy())

    def part(self, chosen: Tensor) -> "StreamedImages":
        """Return some of these images."""
        return StreamedImages(self.index, self.size, chosen if self._rows is None else self._rows[chosen])

    @property
    def are_squares(self) -> bool:
        """True if every image already has S×S pixels, so that none is resized."""
        table = self.index.table
        return all(
            bool((table[side][start : start + 2**16] == self.size).all())
            for start in range(0, len(table), 2**16)
            for side in ("width", "height")
        )

    def __getitem__(self, chosen: Tensor | slice | int) -> Tensor:
        """Decode one image (3, S, S), or several (B, 3, S, S) in threads."""
        if isinstance(chosen, int):
            return self[torch.tensor([chosen])][0]
        if isinstance(chosen, slice):
            chosen = torch.arange(*chosen.indices(len(self)))
        out_B3SS = torch.empty(len(chosen), *self.shape[1:], dtype=torch.uint8)
        with decoders_silenced(), ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            list(pool.map(self.decode_square, chosen.tolist(), out_B3SS))
        return out_B3SS

    def decode_square(self, image: int, out_3SS: Tensor) -> None:
        """Write the central square of an image to `out`."""

        def write(data: bytes, row: int) -> None:
            out_3SS.copy_(torch.from_numpy(decode(data, self.size)))

        self._first_intact(image, write)

    def decode_crops(
        self, images: list[int], uniform_VBK: Tensor, config: AugmentConfig, out_VB3SS: Tensor
    ) -> None:
        """Write random crops of images' original pixels to `out`, by uniform numbers as in `crop_box`."""
        rows = [self._row(image) for image in images]
        V, B, K = uniform_VBK.shape
        boxes_VB4 = self._boxes(config, uniform_VBK.reshape(-1, K), rows * V).view(V, B, 4)
        for place, image in enumerate(images):

            def write(data: bytes, row: int, place: int = place) -> None:
                boxes_V4 = boxes_VB4[:, place]
                if row != rows[place]:
                    boxes_V4 = self._boxes(config, uniform_VBK[:, place], [row] * V)
                decode_crops(data, [Box(*box) for box in boxes_V4.tolist()], out_VB3SS[:, place])

            self._first_intact(image, write)

    def _boxes(self, config: AugmentConfig, uniform_BK: Tensor, rows: list[int]) -> Tensor:
        """Return the crop of each row as a `Box`, (B, 4)."""
        height_B, width_B = (
            torch.from_numpy(self.index.table[side][rows].astype(np.int64)) for side in ("height", "width")
        )
        return torch.stack(crop_box(config, uniform_BK, height_B, width_B), 1)

    def _row(self, image: int) -> int:
        return image if self._rows is None else int(self._rows[image])

    def _first_intact(self, image: int, use: Callable[[bytes, int], None]) -> None:
        """Call `use` with the bytes and the row of an image or, if it is damaged, of its replacement."""
        for row in islice(self._candidates(image), TRIES):
            if self.broken and self.index.names[row] in self.broken:
                continue
            data = self.index.read(row)
            try:
                use(data, row)
                return
            except (MemoryError, InputError):
                raise
            except Exception as error:
                self.broken[self.index.names[row]] = Broken.because(error).reason
        raise InputError(
            f"no image can be decoded near {self.index.names[self._row(image)]!r}: "
            f"{next(iter(self.broken.values()), '')}."
        )

    def _candidates(self, image: int) -> Iterator[int]:
        """Yield the row of an image, then the rows after it: first those of its class, then others."""
        yield self._row(image)
        rows_N: npt.NDArray[np.int64] = np.arange(len(self)) if self._rows is None else self._rows.numpy()
        after_N = np.roll(rows_N, -image)[1:]
        same_N = self.index.table["label"][after_N] == self.index.table["label"][self._row(image)]
        yield from map(int, after_N[same_N])
        yield from map(int, after_N[~same_N])


Images: TypeAlias = Tensor | StreamedImages


def streamed_set(index: Index, size: int, classes: tuple[str, ...]) -> ImageSet:
    """Return the images of an index as an `ImageSet`."""
    labels_N = index.labels
    if labels_N is not None and labels_N.max() >= len(classes):
        raise InputError(
            f"{index.folder}: a label is {labels_N.max()}, and there are {len(classes)} classes."
        )
    images = StreamedImages(index, size)
    return ImageSet(
        images=images,
        labels=None if labels_N is None else torch.from_numpy(labels_N),
        classes=classes if labels_N is not None else (),
        skipped=index.skipped,
        decoded=index.fresh,
        names=images.names,
    )


def part_of(images: Images, chosen: Tensor) -> Images:
    """Return some of the images, without decoding streamed ones."""
    return images.part(chosen) if isinstance(images, StreamedImages) else images[chosen]


def portions(images: Images, count: int) -> Iterator[Tensor]:
    """Yield the images in `count` portions of nearly equal size; streamed ones are decoded one ahead."""
    if isinstance(images, Tensor):
        yield from torch.tensor_split(images, count)
        return
    chosen = torch.tensor_split(torch.arange(len(images)), count)
    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(images.__getitem__, chosen[0])
        for rows in chosen[1:]:
            portion, coming = coming.result(), ahead.submit(images.__getitem__, rows)
            yield portion
        yield coming.result()


@contextmanager
def decoders_silenced() -> Iterator[None]:
    """Ignore Pillow's warnings about large images and damaged metadata, and torch's of read-only arrays."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.filterwarnings("ignore", "The given NumPy array is not writ")
        yield
