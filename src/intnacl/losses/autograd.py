"""Gradients that refuse to be differentiated again, for functions that compute their own.

Torch's `once_differentiable` refuses in `backward()` alone: `torch.autograd.grad` goes only where its inputs
lead, never meets the error, and returns a second derivative in which the gradient counts as a constant.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a `backward` that autograd cannot follow and that returns a tuple.

    A second derivative by anything that the gradient depends on, the saved inputs and the gradients that
    came in, then raises.
    """

    @functools.wraps(backward)
    def _backward(ctx: Any, *grads: Tensor | None) -> Any:
        with torch.no_grad():
            results = backward(ctx, *grads)
        if not torch.is_grad_enabled():  # no second derivative is asked for
            return results
        sources = [t for t in (*grads, *ctx.saved_tensors) if t is not None]
        return tuple(None if r is None else _Refusal.apply(r, *sources) for r in results)

    return _backward


class _Refusal(torch.autograd.Function):
    """A result as it is, tied to the sources that it was computed from."""

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
