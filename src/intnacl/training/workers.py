"""Worker processes that stream images: they read, decode and crop pieces of batches.

Shapes: R rows of a rank's batch, B of a piece, V crops of an image, K uniform numbers a crop, S×S pixels.
"""

import ctypes
import signal
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from intnacl.data import draws
from intnacl.data.augment import BOX_UNIFORMS
from intnacl.data.augmentations import AugmentConfig
from intnacl.data.streamed import Images, StreamedImages, decoders_silenced
from intnacl.errors import InputError

PIECE = 16  # images that a worker makes at a time
PR_SET_PDEATHSIG = 1  # of Linux's prctl: sets a signal for when the parent process ends


class Planned(NamedTuple):
    """A future batch: its number in the run, and the images in this rank's rows."""

    batch: int
    index_R: Tensor


class Crops(NamedTuple):
    """The random crops that are taken of each image's original pixels."""

    config: AugmentConfig
    views: int
    seed: int


class Task(NamedTuple):
    """A piece of a batch: images for the rows from `start` on, to be put into a slot of the ring."""

    slot: int
    batch: int
    start: int
    images: list[int]


class Made(NamedTuple):
    """A finished piece: damaged images that were found, or the reason why it could not be made."""

    slot: int
    broken: dict[str, str]
    failure: str


class Tasks(Iterable[Task]):
    """The pieces of planned batches, one after the other."""

    def __init__(self, plan: Iterable[Planned], rows: int, slots: int) -> None:
        self._plan, self._rows, self._slots = plan, rows, slots

    def __iter__(self) -> Iterator[Task]:
        for number, (batch, index_R) in enumerate(self._plan):
            assert len(index_R) == self._rows, index_R.shape
            for start in range(0, self._rows, PIECE):
                yield Task(number % self._slots, batch, start, index_R[start : start + PIECE].tolist())


class Pieces(Dataset[Made]):
    """Makes pieces of batches in a ring of buffers that processes share."""

    def __init__(self, images: Images, ring: Tensor, rows: Tensor, crops: Crops | None) -> None:
        self.images, self.ring, self.rows, self.crops = images, ring, rows, crops

    def __getitem__(self, task: Task) -> Made:
        """Make a piece."""
        slot, _, start, chosen = task
        stop = start + len(chosen)
        if isinstance(self.images, Tensor):
            torch.index_select(self.images, 0, torch.tensor(chosen), out=self.ring[slot, start:stop])
            return Made(slot, {}, "")
        known = len(self.images.broken)
        try:
            with decoders_silenced():
                self._decode(self.images, task, start, stop)
        except InputError as error:  # DataLoader would bury it in a traceback
            return Made(slot, {}, str(error))
        return Made(slot, dict(list(self.images.broken.items())[known:]), "")

    def _decode(self, images: StreamedImages, task: Task, start: int, stop: int) -> None:
        if self.crops is None:
            for image, out_3SS in zip(task.images, self.ring[task.slot, start:stop], strict=True):
                images.decode_square(image, out_3SS)
            return
        rows_B, views = self.rows[start:stop], self.crops.views
        uniform_BK = draws.uniform(
            self.crops.seed,
            task.batch,
            torch.arange(views).repeat_interleave(len(rows_B)),
            rows_B.repeat(views),
            BOX_UNIFORMS,
        )
        uniform_VBK = uniform_BK.view(views, len(rows_B), BOX_UNIFORMS)
        out_VB3SS = self.ring[task.slot, :, start:stop]
        images.decode_crops(task.images, uniform_VBK, self.crops.config, out_VB3SS)


def unchanged(made: Any) -> Any:
    """Return a worker's result unchanged, where DataLoader would convert it to tensors."""
    return made


def begin_worker(number: int) -> None:
    """Leave signals to the training process, and make this process end when that one does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
