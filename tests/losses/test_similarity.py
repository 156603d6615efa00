"""Similarities: unit rows, twins left out, and log-means that survive any temperature."""

import math

import pytest
import torch
from torch import Tensor

from intnacl.losses.similarity import log_mean_negatives, normalize


def by_loops(anchors: Tensor, keys: Tensor, t: float, beta: float, first: int) -> list[float]:
    half_rows, half_keys = len(anchors) // 2, len(keys) // 2
    result = []
    for i, row in enumerate(anchors.tolist()):
        image = first + i % half_rows
        others = [k for j, k in enumerate(keys.tolist()) if j % half_keys != image]
        kappas = [math.exp(sum(a * b for a, b in zip(row, k, strict=True)) / t) for k in others]
        result.append(math.log(sum(k ** (beta + 1) for k in kappas) / sum(k**beta for k in kappas)))
    return result


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize(("rows", "keys", "first"), [(8, 8, 0), (6, 18, 3), (6, 18, 6)])
def test_log_mean_equals_the_loops_and_its_gradients_finite_differences(beta, rows, keys, first):
    z = [normalize(torch.randn(n, 5, dtype=torch.float64)).requires_grad_() for n in (rows, keys)]
    expected = torch.tensor(by_loops(*z, 0.3, beta, first), dtype=torch.float64)
    torch.testing.assert_close(log_mean_negatives(*z, 0.3, beta, first), expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(lambda *z: log_mean_negatives(*z, 0.3, beta, first), z)


def test_far_away_negatives_at_a_low_temperature_are_not_lost():
    row = torch.tensor([1.0, 0.0])
    z = torch.stack([row, -row, row, -row])  # every negative lies opposite: κ = e^(−100)
    torch.testing.assert_close(log_mean_negatives(z, z * 1, 0.01, 1.0), torch.full((4,), -100.0))


def test_normalize_keeps_zero_vectors_at_zero_does_not_take_overflow_for_zero_and_is_float32_or_better():
    z = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3e19, 4e19]], requires_grad=True)
    unit = normalize(z)
    torch.testing.assert_close(unit[:2], torch.tensor([[0.0, 0.0], [0.6, 0.8]]))
    assert unit[2].isnan().all()
    (gradient,) = torch.autograd.grad(unit[:2].sum(), z)
    assert gradient[0].tolist() == [0.0, 0.0]
    assert gradient[1].isfinite().all()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert normalize(torch.ones(2, 3, dtype=dtype)).dtype == torch.promote_types(dtype, torch.float32)
