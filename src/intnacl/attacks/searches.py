"""Shared parts of AutoAttack's searches: batches that drop fooled samples, and random numbers by seed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(kw_only=True)
class Batch:
    """The samples that a search still works on, one row each in every tensor; subclasses add tensors."""

    row: Tensor
    """Their rows among the samples that the search started with."""
    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.row)

    def drop_fooled(self, fooled_B: Tensor, moved: Tensor, found: Tensor) -> None:
        """Write fooled samples' images from `moved` to their rows of `found`, and drop these samples."""
        if not fooled_B.any():
            return
        found[self.row[fooled_B]] = moved[fooled_B]
        left_B = ~fooled_B
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name)[left_B])


def uniform(seeds: Sequence[int], *shape: int) -> Tensor:
    """Return numbers from [0, 1), (len(seeds), *shape), on the CPU: each row depends on its seed alone."""
    rows = [torch.rand(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(rows) if rows else torch.zeros(0, *shape)


def per_image(values_B: Tensor) -> Tensor:
    """Return (B,) as (B, 1, 1, 1), which broadcasts over images."""
    return values_B[:, None, None, None]
