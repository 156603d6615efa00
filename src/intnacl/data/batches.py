"""The images of each step's batch: a pure function of (seed, step), computed directly for any step.

An epoch is a permutation of the data set, cut into batches; a rest that does not fill a batch is dropped. The
permutation sorts keys from the counter-based generator, not from torch's, so it is the same on every device
and under every version of torch.

Shapes: B rows of the global batch, N images of the data set.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from intnacl.data import draws
from intnacl.errors import InputError

DRAWN = 2**16  # keys drawn at a time, since drawing takes much memory
STREAM = 0xFFFFFFFF  # in place of the view's number in the generator's counter: no view has this number


def steps_per_epoch(n: int, batch_size: int) -> int:
    """Return the number of full batches in N images."""
    if not 1 <= batch_size <= n:
        raise InputError(
            f"batch_size={batch_size} does not fit a data set of n={n} images: take one from 1 to {n}."
        )
    return n // batch_size


@lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, n: int, device: torch.device | str = "cpu") -> Tensor:
    """Return a random order of 0 … N−1, (N,) int64, that sorts 62-bit keys drawn for (seed, epoch)."""
    key_N = torch.empty(n, dtype=torch.int64, device=device)
    for start in range(0, n, DRAWN):
        rows = torch.arange(start, min(n, start + DRAWN), device=device)
        high, low = draws.words(seed, epoch, STREAM, rows, 2).unbind(1)
        key_N[rows] = (high >> 1 << 31) | (low >> 1)
    if key_N.is_cuda:
        return torch.argsort(key_N, stable=True)
    return torch.from_numpy(np.argsort(key_N.cpu().numpy(), kind="stable")).to(
        key_N.device
    )  # takes less memory


def batch_indices(
    seed: int, step: int, n: int, batch_size: int, *, device: torch.device | str = "cpu"
) -> Tensor:
    """Return the indices of the images in the global batch of a step, (B,) int64.

    Steps count from 0 over all epochs.
    """
    epoch, place = divmod(step, steps_per_epoch(n, batch_size))
    return permutation(seed, epoch, n, device)[place * batch_size : (place + 1) * batch_size].clone()


def rank_rows(
    rank: int, world: int, batch_size: int, *, halo: int = 0, device: torch.device | str = "cpu"
) -> Tensor:
    """Return the rows of the global batch that a rank holds: the `halo` rows before its own, then its own.

    (halo + B/world,) int64. The halo wraps around the global batch; it holds the mixing partners of the
    rank's first rows (see `views`).
    """
    if batch_size % world:
        raise InputError(
            f"batch_size={batch_size} is that of all ranks: it must be divisible by their number, {world}."
        )
    if halo >= batch_size:
        raise InputError(
            f"{halo} mixed views need {halo} other images in the batch: batch_size={batch_size} must be "
            f"at least {halo + 1}."
        )
    assert 0 <= rank < world, (rank, world)
    share = batch_size // world
    return torch.arange(rank * share - halo, (rank + 1) * share, device=device) % batch_size
