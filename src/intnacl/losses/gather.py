"""Embeddings and sums of all ranks, with gradients that flow back to the rank that made them.

Shapes: B images on this rank, D embedding size, G = B × world size images on all ranks.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from intnacl.losses.autograd import refuse_double_backward


class Embedding(NamedTuple):
    """One view's embeddings on this rank and on all: row i of `own_BD` is row `first` + i of `all_GD`."""

    own_BD: Tensor
    all_GD: Tensor
    first: int


def gather_embedding(z_BD: Tensor, gather: bool) -> Embedding:
    """Return the view with the rows of all ranks; on one process both are the same tensor."""
    if not gather or world_size() == 1:
        return Embedding(z_BD, z_BD, 0)
    return Embedding(z_BD, _AllGather.apply(z_BD.contiguous()), dist.get_rank() * len(z_BD))


def world_size() -> int:
    """Return the number of ranks; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def batch_mean(values: Tensor, gather: bool) -> Tensor:
    """Return the mean of constants, one per row, over all ranks if `gather`, else over this rank."""
    mean = values.mean()
    if gather and world_size() > 1:
        dist.all_reduce(mean)
        mean = mean / world_size()
    return mean


def sum_over_ranks(values: Tensor) -> Tensor:
    """Return the sum over all ranks of values of the same shape."""
    total: Tensor = _AllSum.apply(values)
    return total


class _AllSum(torch.autograd.Function):
    """Forward: the sum over ranks. Backward: also, since a rank's values are in the sums of all ranks."""

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        total = values.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor]:
        return (sum_over_ranks(grad),)


class _AllGather(torch.autograd.Function):
    """Forward: the rows of all ranks. Backward: the gradient of this rank's own rows, summed over ranks.

    The sum makes DDP's average correct: each rank's loss is the mean over its own rows, so the loss of the
    joined batch is the mean of the ranks' losses, and DDP divides by the number of ranks. The backward pass
    sends each rank only the rows that it owns: the traffic of a reduce-scatter, on every backend.
    """

    @staticmethod
    def forward(z_BD: Tensor) -> Tensor:
        all_GD = z_BD.new_empty(world_size() * len(z_BD), z_BD.shape[1])
        dist.all_gather_into_tensor(all_GD, z_BD)
        return all_GD

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad_GD: Tensor) -> tuple[Tensor]:
        received_GD = torch.empty_like(grad_GD)
        dist.all_to_all_single(received_GD, grad_GD.contiguous())
        return (torch.stack(received_GD.chunk(world_size())).sum(0),)
