"""Exact losses on mixtures: Lemma B.3's halves at M = 1, their failure for M ≥ 2, and what holds instead."""

import math
from itertools import product

import pytest
import torch

from intnacl.errors import InputError
from intnacl.theory.bounds import negatives_for_supervision
from intnacl.theory.mixture import (
    Mixture,
    mean_classifier_loss,
    random_mixture,
    supervised_loss,
    unbiased_loss,
)

RANDOM = [
    (K, P, spread, seed) for K in (2, 3, 5) for P in (1, 3) for spread in (0.3, 1.0, 3.0) for seed in (0, 1)
]


def circle(*classes: tuple[float, ...]) -> Mixture:
    """Points of each class by their angle."""
    angles = torch.tensor(classes, dtype=torch.float64)
    return Mixture(features=torch.stack([angles.cos(), angles.sin()], dim=-1))


TWO_CLASSES = circle((1.3, -1.3), (math.pi, math.pi))
EXCLUSIVE_OR = circle((0.0, math.pi), (math.pi / 2, -math.pi / 2))


@pytest.mark.parametrize(("K", "P", "spread", "seed"), RANDOM)
def test_first_half_the_best_classifier_beats_the_means(K: int, P: int, spread: float, seed: int) -> None:
    mixture = random_mixture(K, P, 4, spread, seed=seed)
    assert supervised_loss(mixture) <= mean_classifier_loss(mixture) + 1e-7


@pytest.mark.parametrize(("K", "P", "spread", "seed"), RANDOM)
def test_second_half_for_one_positive(K: int, P: int, spread: float, seed: int) -> None:
    mixture = random_mixture(K, P, 4, spread, seed=seed)
    losses = [unbiased_loss(mixture, N) for N in (K - 1, K, 4 * K)]
    assert mean_classifier_loss(mixture) <= losses[0] + 1e-12
    assert losses == sorted(losses), "N = K − 1 gives the smallest loss"


def test_second_half_needs_the_negatives() -> None:
    collapsed = random_mixture(
        5, 1, 4, 0.0, seed=0
    )  # one point a class: L_Unbiased at N = K − 1 is nearly L_Sup^μ
    assert unbiased_loss(collapsed, 3) < mean_classifier_loss(collapsed)


def test_second_half_fails_for_several_positives() -> None:
    """N = K − 1 = 1: features at ±1.3 in one class, at π in the other."""
    assert mean_classifier_loss(TWO_CLASSES) == pytest.approx(0.393, abs=5e-4)
    losses = [unbiased_loss(TWO_CLASSES, 1, M) for M in (1, 2, 4, 8)]
    assert losses == pytest.approx([0.444, 0.383, 0.348, 0.333], abs=5e-4)
    assert supervised_loss(TWO_CLASSES) < 1e-6  # linearly separable: L_Sup ≤ L_Unbiased still holds here


def test_not_even_the_best_classifier_is_below_for_two_positives() -> None:
    """Exclusive or: no linear classifier beats log 2, yet two positives bring L_Unbiased below it."""
    assert supervised_loss(EXCLUSIVE_OR) == pytest.approx(math.log(2))
    losses = [unbiased_loss(EXCLUSIVE_OR, 1, M) for M in (1, 2, 8)]
    assert losses == pytest.approx([0.8133, 0.6564, 0.5267], abs=5e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("M", [1, 2, 6])
def test_second_half_for_any_m_with_more_negatives(M: int, temperature: float) -> None:
    angles = [(EXCLUSIVE_OR, 2), (TWO_CLASSES, 2)]
    drawn = [(random_mixture(K, P, 4, spread, seed=seed), K) for K, P, spread, seed in RANDOM]
    for mixture, K in angles + drawn:
        mixture = Mixture(features=mixture.features, temperature=temperature)
        N = negatives_for_supervision(K, M, temperature)
        assert mean_classifier_loss(mixture) <= unbiased_loss(mixture, N, M) + 1e-12
        assert mean_classifier_loss(mixture) <= unbiased_loss(mixture, M * N, M, "N") + 1e-12


@pytest.mark.parametrize("denominator", ["N", "MN"])
def test_more_positives_never_raise_the_loss(denominator: str) -> None:
    for mixture in (random_mixture(3, 4, 4, 1.0, seed=0), TWO_CLASSES, EXCLUSIVE_OR):
        losses = [unbiased_loss(mixture, 5, M, denominator) for M in range(1, 7)]
        assert losses == sorted(losses, reverse=True)


def test_main_text_is_the_proofs_loss_with_n_over_m() -> None:
    mixture = random_mixture(3, 3, 4, 1.0, seed=0)
    for M in (1, 2, 5):
        assert unbiased_loss(mixture, 10, M, "N") == pytest.approx(
            unbiased_loss(mixture, 10 / M, M, "MN"), rel=1e-12
        )


def test_many_positives_tend_to_the_mean_kernel() -> None:
    mixture = random_mixture(3, 2, 4, 0.5, seed=0)
    limit = torch.log1p(5 * mixture.negative_X / mixture.own_XP.mean(1)).mean().item()
    gaps = [unbiased_loss(mixture, 5, M) - limit for M in (1, 10, 100)]
    assert gaps[0] > 5 * gaps[1] > 25 * gaps[2] > 0


@pytest.mark.parametrize("M", [1, 2, 3])
def test_enumeration_equals_loops(M: int) -> None:
    mixture = random_mixture(3, 2, 4, 1.0, seed=1)
    kernel = mixture.kernel_XKP
    losses = []
    for k, p in product(range(3), range(2)):
        row = kernel[2 * k + p]
        negative = sum(float(row[c].mean()) for c in range(3) if c != k) / 2
        for chosen in product(range(2), repeat=M):
            own = sum(float(row[k, j]) for j in chosen)
            losses.append(-math.log(own / (own + M * 7 * negative)))
    assert unbiased_loss(mixture, 7, M) == pytest.approx(sum(losses) / len(losses), rel=1e-12)


def test_one_class_is_no_mixture() -> None:
    with pytest.raises(InputError, match=r"\(1, 3, 2\).*classes ≥ 2"):
        Mixture(features=torch.ones(1, 3, 2))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"features": torch.full((2, 3, 2), torch.nan)}, "not finite"),
        ({"features": torch.ones(2, 3, 2), "temperature": 0.0}, "temperature=0.0"),
    ],
)
def test_bad_mixtures_are_named(settings: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Mixture(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"N": -1}, "N=-1"), ({"M": 0}, "M=0"), ({"denominator": "NM"}, "denominator='NM'.*MN")],
)
def test_bad_settings_are_named(settings: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        unbiased_loss(TWO_CLASSES, **{"N": 1} | settings)
