"""The estimators at their limits: the formula, its floor, closed forms."""

import math

import pytest
import torch

from intnacl.losses import negatives as estimators
from intnacl.losses.gather import Embedding
from intnacl.losses.negatives import Estimator, compare, estimator, log_debiased, log_estimate
from reference import estimate


@pytest.mark.parametrize("name", ["g0", "g1", "g2"])
@pytest.mark.parametrize(("tau_plus", "beta"), [(0.0, 1.0), (0.01, 0.5), (0.4, 2.0), (0.99, 1.0)])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 4), (9, 1), (9, 4), (4, 9)])
def test_the_estimators_equal_the_loops_for_any_n_and_m(name, tau_plus, beta, n, m):
    t = 0.5
    cosines = (2 * torch.rand(50, n + m, dtype=torch.float64) - 1).requires_grad_()
    negatives, positives = (cosines / t).split([n, m], dim=1)
    ours = log_estimate(negatives, positives, estimator(name, tau_plus, beta), t)
    pairs = zip(negatives.exp().tolist(), positives.exp().tolist(), strict=True)
    expected = [estimate(name, u, v, t, tau_plus, beta) for u, v in pairs]
    torch.testing.assert_close(ours.exp(), torch.tensor(expected, dtype=torch.float64))
    assert torch.autograd.grad(ours.sum(), cosines)[0].isfinite().all()


def test_the_floor_has_no_gradient():
    log_mean = torch.tensor([0.0, 0.0], requires_grad=True)
    positive = torch.tensor([10.0, -10.0])  # the first row's positive outweighs its negatives
    (grad,) = torch.autograd.grad(log_debiased(log_mean, positive, 0.5, 1.0).sum(), log_mean)
    assert grad[0] == 0
    assert grad[1] > 0


def test_orthogonal_images_have_a_closed_form():
    """Twins equal, images orthogonal: κ_pos = e^(1/t), all negatives' κ = 1, G = (1 − τ e^(1/t))/(1 − τ)."""
    z, t, tau = torch.eye(4, 8, dtype=torch.float64), 0.5, 0.05
    view = Embedding(z, z, 0)  # of one process
    pair = compare(view, view, Estimator(tau, 1.0), t)
    expected = math.log(6 * (1 - tau * math.exp(1 / t)) / (1 - tau))
    torch.testing.assert_close(pair.positive_R, torch.full((8,), 1 / t, dtype=torch.float64))
    torch.testing.assert_close(pair.negatives_R, torch.full((8,), expected, dtype=torch.float64))


def test_omega_and_its_complement_stay_exact_where_omega_is_tiny():
    tiny, one = torch.tensor([-40.0], dtype=torch.float64), torch.tensor([0.0], dtype=torch.float64)
    assert estimators.log_omega(tiny, one).item() == pytest.approx(-40.0, rel=1e-12)
    assert estimators.log_one_minus_omega(tiny, one).item() == pytest.approx(-math.exp(-40.0), rel=1e-12)
