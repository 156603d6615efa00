"""Measured deviations against the bounds, on mixtures where the unbiased loss is known."""

import math

import pytest
import torch

from intnacl.errors import InputError
from intnacl.theory import simulation
from intnacl.theory.bounds import (
    deviation_tail,
    largest_loss,
    proved_debiasing_gap,
    proved_deviation_tail,
    uniform_deviation,
)
from intnacl.theory.mixture import Mixture, random_mixture, unbiased_loss
from intnacl.theory.rademacher import complexity
from intnacl.theory.simulation import MOST_POSITIVES, Setting, deviations, estimate, feature_class, loss_class

MIXTURE = random_mixture(4, 8, 6, 1.0, seed=0)
# A class at each end of a line: kernels take their extreme values, and E h⁻ = e⁻¹: the hardest case there is.
EXTREME = Mixture(features=torch.tensor([[[1.0]], [[-1.0]]]))


@pytest.mark.parametrize("denominator", ["N", "MN"])
@pytest.mark.parametrize("M", [1, 4])
@pytest.mark.parametrize(("n", "m"), [(4, 1), (32, 1), (256, 64)])
@pytest.mark.parametrize("mixture", [MIXTURE, EXTREME], ids=["random", "extreme"])
def test_deviation_is_below_the_bound(mixture: Mixture, n: int, m: int, M: int, denominator: str) -> None:
    delta = deviations(mixture, Setting(N=16, M=M, n=n, m=m, denominator=denominator), 4000)
    bound = proved_debiasing_gap(n=n, m=m, tau_plus=1 / mixture.classes)
    assert delta.mean().abs() <= delta.abs().mean() < bound


@pytest.mark.parametrize("mixture", [MIXTURE, EXTREME], ids=["random", "extreme"])
def test_tails_are_below_the_bounds(mixture: Mixture) -> None:
    delta = deviations(mixture, Setting(N=1000, M=1, n=400, m=400), 4000).abs()
    tau = 1 / mixture.classes
    for epsilon in (0.1, 0.3, 0.5, 0.7):
        measured = (delta >= epsilon).double().mean().item()
        assert measured <= min(1.0, proved_deviation_tail(epsilon, n=400, m=400, tau_plus=tau)) + 1e-9
        assert measured <= min(1.0, deviation_tail(epsilon, n=400, m=400, tau_plus=tau)) + 1e-9


def test_the_proved_bound_is_within_a_factor_of_three_of_the_worst_case() -> None:
    delta = deviations(EXTREME, Setting(N=10_000, M=1, n=1000, m=10**4), 2000).abs().mean().item()
    assert delta < proved_debiasing_gap(n=1000, m=10**4, tau_plus=0.5) < 3 * delta


def test_deviation_falls_like_one_over_root_n() -> None:
    spread = [deviations(MIXTURE, Setting(n=n, m=n), 4000).abs().mean().item() for n in (16, 256)]
    assert spread[0] / spread[1] == pytest.approx(4, rel=0.15)


def test_the_plain_mean_keeps_its_bias() -> None:
    """g0 draws from p, not from p_x⁻: no n removes the difference, which τ⁺ = 0 in the bound leaves out."""
    plain = [deviations(MIXTURE, Setting(n=n, estimator="g0"), 2000).mean().item() for n in (64, 4096)]
    assert plain[1] == pytest.approx(plain[0], rel=0.2)
    assert plain[1] > proved_debiasing_gap(n=4096, m=10**9, tau_plus=0.0)


def test_draws_agree_with_the_exact_loss() -> None:
    """Averaged over x and x⁺, the loss with the true E h⁻ is the enumerated one, and g1 tends to it."""
    many = deviations(MIXTURE, Setting(N=16, M=2, n=4096, m=4096), 1000)
    assert many.abs().max() < 0.2
    exact = unbiased_loss(MIXTURE, 16, 2)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(32, (20_000,), generator=generator)
    own = MIXTURE.own_XP[x[:, None], torch.randint(8, (20_000, 2), generator=generator)].sum(1)
    sampled = simulation.log_ratio(own, MIXTURE.negative_X[x], 32)
    assert sampled.mean().item() == pytest.approx(exact, abs=4 * sampled.std().item() / math.sqrt(20_000))


def test_estimate_by_hand() -> None:
    u, v = torch.tensor([[1.0, 2.0], [0.4, 0.4]]).double(), torch.tensor([[1.0], [2.0]]).double()
    assert estimate(u, v, "g0", 0.5, 1.0).tolist() == pytest.approx([1.5, 0.4])
    assert estimate(u, v, "g1", 0.5, 1.0).tolist() == pytest.approx([2.0, math.exp(-1)], rel=1e-15)


def test_chunks_do_not_change_the_number_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "CHUNK", 100)
    assert len(deviations(MIXTURE, Setting(n=30), 25)) == 25


def test_complexity_of_the_losses_does_not_fall_like_one_over_m() -> None:
    measured = {}
    for M in (1, 16):
        losses = loss_class(Setting(N=32, M=M, n=32, m=4), encoders=32, T=128)
        measured[M] = complexity(losses)[0]
    assert 1 / 16 < 0.4 < measured[16] / measured[1] < 0.9


def test_features_are_of_norm_one_and_less_complex_than_all_signs() -> None:
    features = feature_class(encoders=16, T=64)
    norms = features.reshape(16, 64, 4).norm(dim=2)
    torch.testing.assert_close(norms, torch.ones_like(norms))
    assert 0 < complexity(features)[0] < features.abs().sum(1).max().item()


def test_symmetrisation_bounds_the_worst_encoder() -> None:
    """E sup_f (E g − mean g) ≤ 2R/T, and the bound for one sample adds its confidence term."""
    setting, T = Setting(N=8, M=2, n=8, m=2), 64
    expected = loss_class(setting, encoders=16, T=20_000, seed=99).mean(1)
    samples = [loss_class(setting, encoders=16, T=T, seed=seed) for seed in range(20)]
    worst = torch.tensor([(expected - losses.mean(1)).max().item() for losses in samples])
    rademacher = torch.tensor([complexity(losses, 200)[0] for losses in samples]).mean().item()
    assert 0 < worst.mean().item() < 2 * rademacher / T
    largest = largest_loss(N=8, tau_plus=0.25)
    assert max(losses.max().item() for losses in samples) < largest
    assert worst.max() < uniform_deviation(rademacher=rademacher, largest=largest, T=T, delta=0.1)


@pytest.mark.parametrize(("settings", "words"), [({"M": 0}, "M=0"), ({"estimator": "g2"}, "'g2'.*g0, g1")])
def test_bad_settings_are_named(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Setting(**settings)  # type: ignore[arg-type]


def test_more_positives_than_are_drawn_are_refused() -> None:
    """Fewer would be summed than the factor counts."""
    assert loss_class(Setting(M=MOST_POSITIVES), encoders=2, T=4).isfinite().all()
    with pytest.raises(InputError, match="M=65: a sample has 64 positives"):
        loss_class(Setting(M=MOST_POSITIVES + 1), encoders=2, T=4)
