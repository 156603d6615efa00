"""Custom gradients that refuse to be differentiated again.

Torch's `once_differentiable` is not enough, since it raises only in `backward()`. `torch.autograd.grad`
visits only the nodes that lead to its inputs, never meets the error, and returns a second derivative in which
the custom gradient counts as a constant.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def refuse_double_backward(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a `backward`, which returns a tuple, whose result autograd cannot differentiate.

    A second derivative then raises, whatever it is taken with respect to: the incoming gradients or the saved
    tensors. Every input that the gradient depends on must therefore be saved with `ctx.save_for_backward`,
    even if `backward` does not read its value.
    """

    @functools.wraps(backward)
    def refusing(ctx: Any, *grads: Tensor | None) -> Any:
        with torch.no_grad():
            results = backward(ctx, *grads)
        if not torch.is_grad_enabled():  # no second derivative is asked for
            return results
        sources = [t for t in (*grads, *ctx.saved_tensors) if t is not None]
        return tuple(None if r is None else _RefuseBackward.apply(r, *sources) for r in results)

    return refusing


class _RefuseBackward(torch.autograd.Function):
    """Return `result` unchanged, as a function of the `sources` that it was computed from."""

    @staticmethod
    def forward(result: Tensor, *sources: Tensor) -> Tensor:
        return result.view_as(result)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise RuntimeError(
            "This gradient cannot be differentiated again: it is computed in closed form, not by autograd. "
            "Leave out create_graph=True, or the term that needs a second derivative."
        )
