"""Half-precision copies of all weights at once.

Autocast copies every weight when its layer needs it and converts every gradient back separately: a hundred
small kernels per step. Here one kernel makes all copies, and one converts all gradients back.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from intnacl.losses.autograd import refuse_double_backward


class HalfWeights(nn.Module):
    """A model whose convolutions and linear layers see copies in autocast's type, if autocast is on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._names = [
            f"{prefix}.{name}" if prefix else name
            for prefix, layer in model.named_modules()
            if isinstance(layer, nn.Conv2d | nn.Linear)
            for name, _ in layer.named_parameters(recurse=False)
        ]

    def forward(self, x: Tensor, **options: bool) -> Any:
        """Return the model's result for x."""
        if not torch.is_autocast_enabled(x.device.type):
            return self.model(x, **options)
        weights = dict(self.model.named_parameters())
        halves = _Halves.apply(
            torch.get_autocast_dtype(x.device.type), *(weights[name] for name in self._names)
        )
        return functional_call(self.model, dict(zip(self._names, halves, strict=True)), (x,), options)


class _Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [weight.dtype for weight in weights]
        return tuple(_converted(weights, [dtype] * len(weights)))

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_converted(gradients, ctx.dtypes)


def _converted(tensors: tuple[Tensor, ...], dtypes: list[torch.dtype]) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    torch._foreach_copy_(copies, tensors)
    return copies
