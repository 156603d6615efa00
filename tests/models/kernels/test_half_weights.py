"""Copies of all weights at once equal those that autocast makes one by one."""

import pytest
import torch
from torch import nn

from intnacl.models.encoders import EncoderConfig, build_model
from intnacl.models.kernels.half_weights import HalfWeights


def results(model: nn.Module, x: torch.Tensor, enabled: bool) -> list[torch.Tensor]:
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        z = model(x)
    return [z, *torch.autograd.grad(z.float().square().sum(), list(model.parameters()))]


@pytest.mark.parametrize("enabled", [True, False], ids=["autocast", "plain"])
@pytest.mark.parametrize("head", ["paper", "hcl"])
def test_embeddings_and_gradients_are_autocasts(head, enabled):
    model = build_model(EncoderConfig(name="small", head=head), image_size=8, adversarial=False, seed=0)
    x = torch.rand(8, 3, 8, 8)
    plain, halves = results(model, x, enabled), results(HalfWeights(model), x, enabled)
    torch.testing.assert_close(halves, plain, rtol=0, atol=0)


def test_frozen_weights_stay_frozen_and_statistics_are_the_models_own():
    model = build_model(EncoderConfig(name="small"), image_size=8, adversarial=False, seed=0)
    model.requires_grad_(False)
    x = torch.rand(4, 3, 8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        z = HalfWeights(model)(x)
    (gradient,) = torch.autograd.grad(z.float().sum(), x)
    assert gradient.abs().sum() > 0
    assert all(type(weight) is nn.Parameter and weight.grad is None for weight in model.parameters())
    norm = next(layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d))
    assert norm.running_mean.abs().sum() > 0


def test_a_second_derivative_is_refused():
    layer = nn.Linear(3, 2)
    with torch.autocast("cpu", torch.bfloat16):
        z = HalfWeights(layer)(torch.rand(4, 3)).float()
    (gradient,) = torch.autograd.grad(z.square().sum(), layer.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(gradient.square().sum(), layer.weight)
