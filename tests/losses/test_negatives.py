"""The estimators at their limits: the formula, its floor, closed forms."""

import math

import pytest
import torch

from intnacl.losses.gather import Embedding
from intnacl.losses.negatives import (
    Estimator,
    compare,
    log_estimate,
    log_omega,
    log_one_minus_omega,
)
from intnacl.losses.similarity import normalize


@pytest.mark.parametrize("tau_plus", [0.0, 0.01, 0.4, 0.99])
def test_log_estimate_equals_the_formula(tau_plus: float) -> None:
    t = 0.5
    mean, positive = torch.tensor([[3.0], [7.0]]) * torch.rand(2, 50, dtype=torch.float64) + 0.14
    expected = [
        max((m - tau_plus * p) / (1 - tau_plus), math.exp(-1 / t))
        for m, p in zip(mean.tolist(), positive.tolist(), strict=True)
    ]
    ours = log_estimate(mean.log(), positive.log(), tau_plus, t).exp()
    torch.testing.assert_close(ours, torch.tensor(expected, dtype=torch.float64))


def test_the_floor_has_no_gradient() -> None:
    log_mean = torch.tensor([0.0, 0.0], requires_grad=True)
    positive = torch.tensor([10.0, -10.0])  # the first row's positive outweighs its negatives
    (grad,) = torch.autograd.grad(log_estimate(log_mean, positive, 0.5, 1.0).sum(), log_mean)
    assert grad[0] == 0
    assert grad[1] > 0


def alone(z: torch.Tensor) -> Embedding:
    """A view of one process."""
    return Embedding(z, z, 0)


def test_orthogonal_images_have_a_closed_form() -> None:
    """Twins equal, images orthogonal: κ_pos = e^(1/t), all negatives' κ = 1, G = (1 − τ e^(1/t))/(1 − τ)."""
    z, t, tau = torch.eye(4, 8, dtype=torch.float64), 0.5, 0.05
    pair = compare(alone(z), alone(z), Estimator(tau, 1.0), t)
    expected = math.log(6 * (1 - tau * math.exp(1 / t)) / (1 - tau))
    torch.testing.assert_close(pair.positive_R, torch.full((8,), 1 / t, dtype=torch.float64))
    torch.testing.assert_close(pair.negatives_R, torch.full((8,), expected, dtype=torch.float64))


def test_hard_negatives_raise_the_estimate() -> None:
    z = normalize(torch.randn(6, 4))
    plain, hard = (compare(alone(z), alone(-z), Estimator(0.0, beta), 0.5) for beta in (0.0, 1.0))
    assert (hard.negatives_R > plain.negatives_R).all()


def test_omega_and_its_complement_stay_exact_where_omega_is_tiny() -> None:
    positive, negatives = torch.tensor([-40.0], dtype=torch.float64), torch.tensor([0.0], dtype=torch.float64)
    assert log_omega(positive, negatives).item() == pytest.approx(-40.0, rel=1e-12)
    assert log_one_minus_omega(positive, negatives).item() == pytest.approx(-math.exp(-40.0), rel=1e-12)
