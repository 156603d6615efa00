"""Differentiating a closed-form gradient again is an error, rather than treating it as a constant."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from intnacl import IntNaClLoss
from intnacl.losses.autograd import refuse_double_backward
from intnacl.losses.similarity import log_mean_negatives
from intnacl.theory.neighbours import neighbour_loss


class Cube(torch.autograd.Function):
    """a x³, whose gradient with respect to x is computed in closed form."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor) -> Tensor:
        ctx.save_for_backward(x, a)
        return a * x**3

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, a = ctx.saved_tensors
        return grad * 3 * a * x**2, None


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "cube": lambda z: Cube.apply(z, torch.tensor(2.0)).sum(),
    "loss": lambda z: IntNaClLoss()(z, z.flip(0)),
    "log-means": lambda z: log_mean_negatives(z, z * 1, 0.5, 1.0).sum(),
    "neighbours": lambda z: neighbour_loss(z, torch.arange(6) % 2),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_second_derivative_is_refused_rather_than_wrong(function):
    z = torch.randn(6, 4, requires_grad=True)
    loss = function(z)
    (gradient,) = torch.autograd.grad(loss, z, create_graph=True)
    assert torch.equal(gradient, torch.autograd.grad(function(z), z)[0])
    twice = loss + gradient.square().sum()
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(twice, z, retain_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        twice.backward()


def test_torch_func_differentiates_the_loss():
    assert torch.func.grad(FUNCTIONS["loss"])(torch.randn(6, 4)).shape == (6, 4)


def test_a_derivative_of_the_gradient_by_another_saved_tensor_is_refused():
    """Torch's `once_differentiable` would let it pass, as zero."""
    x, a = torch.tensor(2.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    y = Cube.apply(x, a)
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    assert gradient == 24
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(y + gradient, a)
