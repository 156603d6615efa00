"""Optimisers: LARS against its formula in loops, torch's by name, rates by step."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from intnacl.training.optimizers import LARS, OptimizerConfig, build_optimizer, rate_at, set_rate
from intnacl.training.settings import TrainConfig

CPU = torch.device("cpu")


def lars_in_loops(w: Tensor, grads: list[Tensor], lr: float, momentum: float, decay: float, adapt: bool):
    """v ← μv + η (g + wd·w), w ← w − lr·v, number by number."""
    values, speeds, decay = w.flatten().tolist(), [0.0] * w.numel(), decay if adapt else 0.0
    for grad in grads:
        g = [gi + decay * wi for gi, wi in zip(grad.flatten().tolist(), values, strict=True)]
        norm_w, norm_g = math.sqrt(sum(v * v for v in values)), math.sqrt(sum(v * v for v in g))
        eta = 0.001 * norm_w / norm_g if adapt and norm_w > 0 and norm_g > 0 else 1.0
        speeds = [momentum * v + eta * gi for v, gi in zip(speeds, g, strict=True)]
        values = [wi - lr * v for wi, v in zip(values, speeds, strict=True)]
    return torch.tensor(values, dtype=w.dtype).view_as(w)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 3, 3), (5,)], ids=["matrix", "kernel", "bias"])
@pytest.mark.parametrize("start", [1.0, 0.0], ids=["random", "zero"])
def test_lars_equals_its_formula(shape, start):
    w = nn.Parameter(start * torch.randn(shape, dtype=torch.float64))
    grads = [torch.randn(shape, dtype=torch.float64) for _ in range(4)]
    expected = lars_in_loops(w.detach(), grads, lr=0.3, momentum=0.9, decay=0.01, adapt=len(shape) > 1)
    unused = nn.Parameter(torch.ones(2, 2))
    optimizer = LARS([w, unused], torch.tensor(0.3, dtype=torch.float64), 0.9, 0.01)
    for grad in grads:
        w.grad = grad.clone()
        optimizer.step()
        assert torch.equal(w.grad, grad)
    torch.testing.assert_close(w.detach(), expected)
    assert torch.equal(unused, torch.ones(2, 2)), "it has no gradient"


OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "lars": "LARS"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimisers_by_name_follow_the_rate_that_is_set(name):
    net, config = nn.Linear(3, 2), OptimizerConfig(optimizer=name, lr=0.1, weight_decay=0.01, momentum=0.8)
    optimizer = build_optimizer(net, config, CPU)
    assert type(optimizer).__name__ == OPTIMIZERS[name]
    group, before = optimizer.param_groups[0], net.weight.detach().clone()
    assert (group["weight_decay"], group.get("momentum", 0.8)) == (0.01, 0.8)
    net(torch.rand(4, 3)).sum().backward()
    for rate in (0.0, 0.1):
        set_rate(optimizer, rate)
        optimizer.step()
        assert torch.equal(net.weight, before) == (rate == 0.0)


def moved_by_decay(name: str, **settings: Any) -> list[bool]:
    """Return the network's parameters that a step with a gradient of zero changes."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    before = [p.detach().fill_(0.5).clone() for p in net.parameters()]
    optimizer = build_optimizer(net, OptimizerConfig(optimizer=name, lr=0.1, **settings), CPU)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    return [not torch.equal(p, old) for p, old in zip(net.parameters(), before, strict=True)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weight_decay_spares_biases_and_norms_and_without_it_there_is_one_group(name):
    """Recorded runs have none: their checkpoints number the parameters in the order of the model."""
    matrices = [True, False, False, False, True, False]
    assert moved_by_decay(name, weight_decay=0.1) == matrices
    every = matrices if name == "lars" else [True] * 6
    assert moved_by_decay(name, weight_decay=0.1, decay_vectors=True) == every
    assert moved_by_decay(name) == [False] * 6
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    (group,) = build_optimizer(net, OptimizerConfig(optimizer=name, lr=0.1), CPU).param_groups
    assert [id(p) for p in group["params"]] == [id(p) for p in net.parameters()]
    assert group["weight_decay"] == OptimizerConfig().weight_decay == 0


def test_adam_is_the_default_with_the_papers_rate_and_leaves_out_frozen_parameters():
    net = nn.Linear(2, 2)
    net.bias.requires_grad_(False)
    optimizer = build_optimizer(net, OptimizerConfig().with_rate(512), CPU)
    assert isinstance(optimizer, torch.optim.Adam)
    (group,) = optimizer.param_groups
    assert group["lr"].item() == pytest.approx(3e-4)
    assert (group["betas"], group["weight_decay"]) == ((0.9, 0.999), 0)
    assert [id(p) for p in group["params"]] == [id(net.weight)]


@pytest.mark.parametrize(("name", "rate"), [("adam", 3e-4), ("adamw", 3e-4), ("sgd", 0.1), ("lars", 0.6)])
def test_every_optimiser_has_a_default_rate(name, rate):
    """It depends on the images per update, over all its batches."""
    for batches in ({"batch_size": 512}, {"batch_size": 256, "accumulate": 2}):
        config = TrainConfig(optimizer=name, **batches)
        assert config.on(CPU).lr == config.with_usual_rate().lr == pytest.approx(rate)
        assert replace(config, lr=0.2).on(CPU).lr == 0.2


def test_learning_rates_follow_warm_up_and_schedule():
    constant = OptimizerConfig(lr=0.8)
    assert [rate_at(constant, s, 8, 0) for s in (0, 3, 7)] == [0.8] * 3
    assert [rate_at(constant, s, 8, 4) for s in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    cosine = OptimizerConfig(lr=0.8, schedule="cosine")
    assert rate_at(cosine, 0, 8, 0) == pytest.approx(0.8)
    assert rate_at(cosine, 4, 8, 0) == pytest.approx(0.4)
    assert rate_at(cosine, 8, 8, 0) == pytest.approx(0.0)
    assert rate_at(cosine, 2, 8, 0) == pytest.approx(0.8 * (1 + math.sqrt(0.5)) / 2)
    assert [rate_at(cosine, s, 8, 4) for s in (0, 3, 4, 6)] == pytest.approx([0.2, 0.8, 0.8, 0.4])
    assert rate_at(cosine, 3, 4, 4) == pytest.approx(0.8)  # nothing but warm-up
