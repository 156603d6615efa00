"""A closed-form gradient is no constant: whoever differentiates it again must hear of it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from intnacl import IntNaClLoss
from intnacl.losses.similarity import log_mean_negatives
from intnacl.theory.neighbours import neighbour_loss

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "loss": lambda z: IntNaClLoss()(z, z.flip(0)),
    "log-means": lambda z: log_mean_negatives(z, z * 1, 0.5, 1.0).sum(),
    "neighbours": lambda z: neighbour_loss(z, torch.arange(6) % 2),
}
SECOND: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "backward": lambda z, loss, gradient: (loss + gradient.square().sum()).backward(),
    "grad": lambda z, loss, gradient: torch.autograd.grad(loss + gradient.square().sum(), z),
}


@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_second_derivative_is_refused_rather_than_wrong(
    function: Callable[[Tensor], Tensor], second: Callable[[Tensor, Tensor, Tensor], object]
) -> None:
    z = torch.randn(6, 4, requires_grad=True)
    loss = function(z)
    (gradient,) = torch.autograd.grad(loss, z, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        second(z, loss, gradient)


def test_the_first_derivative_stays_the_same() -> None:
    z = torch.randn(6, 4, requires_grad=True)
    for function in FUNCTIONS.values():
        plain, traced = (torch.autograd.grad(function(z), z, create_graph=c)[0] for c in (False, True))
        assert torch.equal(plain, traced)
    assert torch.func.grad(FUNCTIONS["loss"])(z.detach()).shape == z.shape
