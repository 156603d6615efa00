"""GPU kernels for the networks, and when they are used."""

import importlib.util

import torch
import torch.distributed as dist
from torch import nn

from intnacl.models.batchnorm import ViewBatchNorm, over_ranks
from intnacl.models.resnets import ResNet


def fuse(model: nn.Module, on: bool) -> bool:
    """Train the batch norms of a ResNet with our kernels if `on` and all of them are suited; return if so.

    They are suited on a GPU, in float32, with per-rank statistics. Between these kernels only convolutions
    are left, so `torch.compile` would add nothing but its own time. Call this again after moving the model to
    another device.
    """
    norms = [module for module in model.modules() if isinstance(module, ViewBatchNorm)]
    suited = (
        any(isinstance(module, ResNet) for module in model.modules())
        and all(norm.weight.is_cuda and norm.weight.dtype == torch.float32 for norm in norms)
        and not (dist.is_initialized() and any(norm.normalize is over_ranks for norm in norms))
        and importlib.util.find_spec("triton") is not None
    )
    fused, kernel = on and bool(norms) and suited, None
    if fused:
        from intnacl.models.kernels.batchnorm import norm_relu

        kernel = norm_relu
    for norm in norms:
        norm.kernel = kernel
    return fused
