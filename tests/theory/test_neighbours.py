"""NCA's objective against loops, by finite differences, at its limits, and in any tile size."""

import math

import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.model_selection import LeaveOneOut, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from intnacl.errors import InputError
from intnacl.theory import neighbours
from intnacl.theory.neighbours import OBJECTIVES, leave_one_out_accuracy, neighbour_loss
from mistakes import must_refuse


def points(count: int = 12, classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 4, dtype=torch.float64), torch.arange(count) % classes


def looped(z: Tensor, labels: Tensor, objective: str) -> float:
    """The definition, written as loops."""
    losses = []
    for i in range(len(z)):
        kernel = {k: math.exp(-float((z[i] - z[k]).square().sum())) for k in range(len(z)) if k != i}
        own = [kernel[j] for j in kernel if labels[j] == labels[i]]
        if own:
            p = sum(own) / sum(kernel.values())
            losses.append(-math.log(p) if objective == "kl" else 1 - p)
    return sum(losses) / len(losses)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("tile", [None, 1, 30, 10_000])
@pytest.mark.parametrize("alone", [False, True])
def test_equals_the_loops_and_finite_differences(objective, tile, alone):
    z, labels = points()
    if alone:
        labels[0] = (
            7  # the only point of its class: not an anchor, no point's positive, every point's negative
        )
    expected = looped(z, labels, objective)
    assert neighbour_loss(z, labels, objective, tile).item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda z: neighbour_loss(z, labels, objective, tile), z.requires_grad_())


def test_kl_has_a_gradient_even_if_the_probability_underflows():
    z = torch.tensor([[0.0], [1e3], [1.0]], requires_grad=True)  # p_0 = e^(−10⁶) underflows
    loss = neighbour_loss(z, torch.tensor([0, 0, 1]), "kl")
    loss.backward()
    assert loss.item() == pytest.approx((1e6 - 1 + 0) / 2 + (1e6 - 999**2) / 2, rel=1e-5)
    assert z.grad[0] < 0 < z.grad[1]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_equal_points_choose_evenly_and_classes_without_pairs_give_zero(objective):
    loss = neighbour_loss(torch.zeros(9, 2), torch.arange(9) % 3, objective)
    assert loss.item() == pytest.approx(-math.log(2 / 8) if objective == "kl" else 6 / 8, rel=1e-6)
    z = torch.randn(3, 2, requires_grad=True)
    loss = neighbour_loss(z, torch.arange(3), objective)
    loss.backward()
    assert loss.item() == 0
    assert not z.grad.any()


def test_no_tile_exceeds_its_number_of_elements(monkeypatch):
    tiles, compute = [], neighbours.neighbour_logits
    monkeypatch.setattr(neighbours, "neighbour_logits", lambda *a: tiles.append(compute(*a)) or tiles[-1])
    neighbour_loss(torch.randn(100, 2), torch.arange(100) % 2, tile=1000)
    assert max(tile.numel() for tile in tiles) <= 1000
    assert sum(tile.numel() for tile in tiles) == 100 * 100


def test_bad_arguments_are_named():
    must_refuse(neighbour_loss, *points(), "kll", r"objective='kll'.*did you mean 'kl'")
    for count in (0, 12, 20):  # 12: each point would count as its own neighbour
        with pytest.raises(InputError, match=rf"neighbours={count} must lie in 1…11: 12 points"):
            leave_one_out_accuracy(*points(), count)


@pytest.mark.parametrize(("neighbours", "origin"), [(1, 0), (5, 0), (1, 4096)])
def test_leave_one_out_agrees_with_scikit_learn(neighbours, origin):
    X, y = load_iris(return_X_y=True)
    z = torch.tensor(X, dtype=torch.float32 if origin else torch.float64) + origin
    classifier = KNeighborsClassifier(neighbours)
    expected = cross_val_score(classifier, z.double().numpy(), y, cv=LeaveOneOut()).mean()
    tolerance = 0.01 if origin else 1e-12
    assert leave_one_out_accuracy(z, torch.tensor(y), neighbours) == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_far_from_the_origin_float32_keeps_its_digits(objective):
    """Distances do not depend on the origin, and must not drown in squares of large coordinates."""
    z, labels = points()
    far = (1024 * z).round() / 1024 + 4096  # numbers that float32 holds exactly
    where = [(far - 4096).requires_grad_(), far.float().requires_grad_()]
    losses = [neighbour_loss(z, labels, objective) for z in where]
    near, shifted = (torch.autograd.grad(*pair)[0] for pair in zip(losses, where, strict=True))
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-4)
    torch.testing.assert_close(shifted.double(), near, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_autocast_and_half_precision_only_round_the_embeddings(objective):
    half = torch.randn(500, 1).bfloat16().requires_grad_()
    wide = half.detach().float()
    labels = (3 * wide).floor().long()[:, 0] % 3
    for function, options in ((neighbour_loss, [objective]), (leave_one_out_accuracy, [])):
        expected = function(wide, labels, *options)
        assert function(half, labels, *options) == expected
        with torch.autocast("cpu", torch.bfloat16):
            assert function(wide, labels, *options) == function(half, labels, *options) == expected
    neighbour_loss(half, labels, objective).backward()
    assert half.grad.dtype == torch.bfloat16
