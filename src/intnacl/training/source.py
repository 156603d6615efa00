"""The source of a step's images: all images on the device, or batches that worker processes make ahead.

Shapes: R rows of a rank's batch, V crops of an image, S×S pixels, k batches an update.
"""

import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from intnacl.data.streamed import Images
from intnacl.errors import InputError, LostWorkerError
from intnacl.training.workers import PIECE, Crops, Made, Pieces, Planned, Tasks, begin_worker, unchanged

AHEAD = 4  # pieces that each worker has in its queue
MOST_WORKERS = 16


class Resident:
    """All images on the device, from which the update takes batches by index."""

    def __init__(self, images: Tensor, device: torch.device) -> None:
        try:
            self.images = images.to(device)
        except torch.OutOfMemoryError as error:
            gib = images.nbytes / 2**30
            raise InputError(
                f"out of memory: the {len(images):,} images take {gib:.1f} GiB on {device}, more than it has "
                "free. Stream them (--stream always), or take fewer or smaller ones (--size for those that "
                "are resized)."
            ) from error
        self.broken: dict[str, str] = {}

    def read(self, batch: int, index_R: Tensor) -> Tensor:
        """Return the images of one of the update's batches, (R, 3, S, S)."""
        return self.images[index_R]

    @contextmanager
    def opened(self, plan: Iterable[Planned]) -> Iterator[None]:
        """Do nothing: all images are on the device already."""
        yield

    def fill(self) -> None:
        """Do nothing."""

    def look_ahead(self) -> None:
        """Do nothing."""


def open_source(
    images: Images,
    rows: Tensor,
    device: torch.device,
    *,
    stream: bool,
    crops: Crops,
    accumulate: int,
    workers: int | None,
) -> "Resident | Streamed":
    """Return the source of a step's images.

    Workers crop images that have to be resized. Others are passed on whole and cropped on the device, as
    resident images are.
    """
    if isinstance(images, Tensor) and not stream:
        return Resident(images, device)
    whole = isinstance(images, Tensor) or crops.config.crop_scale is None or images.are_squares
    return Streamed(
        images, rows, crops=None if whole else crops, accumulate=accumulate, workers=workers, device=device
    )


class Streamed:
    """Batches that worker processes make ahead of the updates, in a ring of buffers in shared memory.

    Images that are already in this machine's memory are only gathered, by this process.
    """

    def __init__(
        self,
        images: Images,
        rows: Tensor,
        *,
        crops: Crops | None,
        accumulate: int,
        workers: int | None,
        device: torch.device,
    ) -> None:
        self.images, self.rows = images, rows.cpu()
        self._workers = usual_workers(device) if workers is None else workers
        if isinstance(images, Tensor):
            self._workers = 0
        self._pieces = -(-len(rows) // PIECE)
        # Slots for the update's batches, one that is awaited, and those that the workers have begun.
        depth = accumulate + 1 + -(-self._workers * AHEAD // self._pieces)
        side = images.shape[-1]
        views = () if crops is None else (crops.views,)
        ring = torch.zeros(depth, *views, len(rows), 3, side, side, dtype=torch.uint8)
        self._ring = ring.share_memory_() if self._workers else ring  # type: ignore[no-untyped-call]
        self._worker_side = Pieces(images, self._ring, self.rows, crops)
        self._slots = list(range(accumulate))
        self._staged = _Staged(ring[:accumulate], device) if device.type == "cuda" else None
        self._made: Iterator[Made] | None = None
        self._is_ahead = False
        self.broken: dict[str, str] = {}

    def read(self, batch: int, index_R: Tensor) -> Tensor:
        """Return the images of one of the update's batches: (R, 3, S, S), or (V, R, 3, S, S) if cropped."""
        return self._ring[self._slots[batch]] if self._staged is None else self._staged.used[batch]

    @contextmanager
    def opened(self, plan: Iterable[Planned]) -> Iterator[None]:
        """Let the workers make the planned batches, in this order, until the block ends."""
        loader: DataLoader[Made] = DataLoader(
            self._worker_side,
            batch_size=None,
            sampler=Tasks(plan, len(self.rows), len(self._ring)),
            num_workers=self._workers,
            prefetch_factor=AHEAD if self._workers else None,
            # Forked workers share this process's memory, and a script needs no `if __name__ == "__main__"`.
            multiprocessing_context="fork" if self._workers and sys.platform == "linux" else None,
            worker_init_fn=begin_worker,
            collate_fn=unchanged,
        )
        try:
            with warnings.catch_warnings():  # about threads that a fork does not copy: workers need none
                warnings.simplefilter("ignore", DeprecationWarning)
                self._made = iter(loader)
            yield
        except RuntimeError as error:
            if not (died := re.search(r"DataLoader worker \(pid\(?s?\)?:? *([\d, ]+)\)(.*)", str(error))):
                raise
            raise LostWorkerError(
                f"the worker process {died[1]} that decodes images died{_cause(died[2])}. Work since the "
                "last checkpoint is lost; run the same command again to resume."
            ) from error
        finally:
            made, self._made, self._is_ahead = self._made, None, False
            getattr(
                made, "_shutdown_workers", lambda: None
            )()  # now, rather than when they are garbage-collected

    def fill(self) -> None:
        """Make the update's batches available to `read`; outside of `opened`, do nothing."""
        if self._made is None:
            return
        if self._staged is None:
            self._take()
            return
        if not self._is_ahead:
            self.look_ahead()
        self._is_ahead = False
        self._staged.use()

    def look_ahead(self) -> None:
        """Start to copy the next update's batches to the GPU while it still runs the last update."""
        if self._made is None or self._staged is None or not self._take():
            return
        self._staged.send([self._ring[slot] for slot in self._slots])
        self._is_ahead = True

    def _take(self) -> bool:
        """Wait for the next update's batches; return False if no more are planned."""
        assert self._made is not None
        pieces = list(islice(self._made, len(self._slots) * self._pieces))
        for piece in pieces:
            if piece.failure:
                raise InputError(piece.failure)
            self.broken.update(piece.broken)
        self._slots = [piece.slot for piece in pieces[:: self._pieces]] or self._slots
        return bool(pieces)


def usual_workers(device: torch.device) -> int:
    """Return a rank's default number of workers: its number of cores or, if it trains on them, half."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(MOST_WORKERS, cores if device.type == "cuda" else cores // 2))


def _cause(how: str) -> str:
    killed = re.search(r"signal: (\w+)", how)
    if killed is None:
        return ""
    return f" (signal {killed[1]}{', perhaps for lack of memory' if killed[1] == 'Killed' else ''})"


class _Staged:
    """Two buffers on the GPU: one that the update reads, and one that receives the next batches.

    An update always reads the same memory, as a captured graph requires.
    """

    def __init__(self, like: Tensor, device: torch.device) -> None:
        self.used = torch.zeros_like(like, device=device)
        self._coming = torch.zeros_like(like, device=device)
        self._pinned = torch.empty_like(like, device="cpu", pin_memory=True)
        self._device, self._stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._arrived, self._taken = torch.cuda.Event(), torch.cuda.Event()  # type: ignore[no-untyped-call]

    def send(self, batches: list[Tensor]) -> None:
        """Start to copy an update's batches, once the previous ones have been taken."""
        self._arrived.synchronize()  # the end of the previous copy, from the same memory
        for pinned, batch in zip(self._pinned, batches, strict=True):
            pinned.copy_(batch)
        self._stream.wait_event(self._taken)
        with torch.cuda.stream(self._stream):
            self._coming.copy_(self._pinned, non_blocking=True)
            self._arrived.record()

    def use(self) -> None:
        """Make what was sent available to the update and everything else that is launched from now on."""
        now = torch.cuda.current_stream(self._device)
        now.wait_event(self._arrived)
        self.used.copy_(self._coming)
        self._taken.record(now)
