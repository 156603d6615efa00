"""The sweep: measured values lie below the proved bounds, in every setting."""

import json
import math

import pytest

from intnacl.theory.sweep import SweepConfig, sweep
from mistakes import refused


@pytest.fixture(scope="module")
def measured():
    return sweep(SweepConfig(draws=500, points=8))


def test_deviations_and_their_tail_are_below_the_bounds(measured):
    for row in (row for name in ("n", "m", "M") for row in measured[name]):
        assert row["gap"] <= row["spread"] < row["proved"] < row["paper"]
    assert min(len(measured[name]) for name in ("n", "m", "M")) >= 5
    shares = [row["measured"] for row in measured["tail"]]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0
    assert all(row["measured"] <= row["proved"] <= row["paper"] for row in measured["tail"])
    assert json.loads(json.dumps(measured)) == sweep(SweepConfig(draws=500, points=8))


def test_lemma_b3_fails_and_is_repaired_and_complexity_falls_more_slowly_than_one_over_m(measured):
    for rows in measured["lemma"].values():
        assert rows[0]["unbiased"] > rows[0]["sup_mean"] > rows[-1]["unbiased"]
        assert all(row["unbiased_enough"] >= row["sup_mean"] >= row["sup"] - 1e-9 for row in rows)
    first, last = measured["complexity"][0], measured["complexity"][-1]
    assert first["MN"] == pytest.approx(first["N"])  # M = 1: one loss
    assert 2 / last["value"] < last["N"] / first["N"] < last["MN"] / first["MN"] < 1


def test_order_terms_are_those_of_the_theorems(measured):
    """By hand at N = 32, n = m = 256, K = 4, T = 256, δ = 0.05; only λ = 1/M·(…) depends on M."""
    first, last = measured["order"][0], measured["order"][-1]
    assert first["negatives"] == pytest.approx(4 / 3 / 16)
    assert first["positives"] == pytest.approx(1 / 3 / 16)
    confidence = math.log(32) * math.sqrt(math.log(20) / 256)
    assert first["confidence"] == pytest.approx(confidence * (4 / 3 + 1 / 4))
    assert first["complexity"] == pytest.approx(16 * last["complexity"])
    rademacher_over_T = first["complexity"] / math.sqrt(2 * 16 / 9 + 2 / 16)
    assert first["plain"] == pytest.approx(math.sqrt(1 / 32) + rademacher_over_T + confidence)
    for row in measured["order"]:
        parts = (row[name] for name in ("negatives", "positives", "complexity", "confidence"))
        assert row["debiased"] == pytest.approx(sum(parts))


test_bad_settings_are_named = refused(
    lambda settings: SweepConfig(**settings),
    ({"classes": 1}, "classes=1 must be a whole number from 2 to"),
    ({"draws": 1}, "draws=1 must be a whole number from 2 to"),
    ({"points": 0}, "points=0 must be a whole number from 1 to"),
    ({"dimensions": 2**31}, f"dimensions={2**31} must be a whole number from 1 to"),
    ({"seed": 2**64}, f"seed={2**64} must lie in"),
    ({"spread": -1.0}, "spread=-1.0.*0 or more"),
    ({"spread": math.nan}, "spread=nan"),
    ({"delta": 1.0}, "delta=1.0.*between 0 and 1"),
)
