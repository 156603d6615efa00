"""The sweep: what was measured lies below what was proved, in every setting it reports."""

import json
import math

import pytest

from intnacl.errors import InputError
from intnacl.theory.sweep import SweepConfig, sweep


@pytest.fixture(scope="module")
def measured() -> dict:
    return sweep(SweepConfig(draws=500, points=8))


@pytest.mark.parametrize("name", ["n", "m", "M"])
def test_deviations_are_below_the_bounds(measured: dict, name: str) -> None:
    assert len(measured[name]) >= 5
    for row in measured[name]:
        assert row["gap"] <= row["spread"] < row["proved"] < row["paper"]


def test_tail_is_below_the_bounds_and_falls(measured: dict) -> None:
    shares = [row["measured"] for row in measured["tail"]]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0
    assert all(row["measured"] <= row["proved"] <= row["paper"] for row in measured["tail"])


def test_lemma_fails_and_is_repaired(measured: dict) -> None:
    for rows in measured["lemma"].values():
        assert rows[0]["unbiased"] > rows[0]["sup_mean"] > rows[-1]["unbiased"]
        assert all(row["unbiased_enough"] >= row["sup_mean"] >= row["sup"] - 1e-9 for row in rows)


def test_complexity_falls_more_slowly_than_one_over_m(measured: dict) -> None:
    first, last = measured["complexity"][0], measured["complexity"][-1]
    assert first["MN"] == pytest.approx(first["N"])  # M = 1: one loss
    assert 2 / last["value"] < last["N"] / first["N"] < last["MN"] / first["MN"] < 1


def test_is_plain_numbers_and_repeats(measured: dict) -> None:
    assert json.loads(json.dumps(measured)) == sweep(SweepConfig(draws=500, points=8))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"classes": 1}, "classes=1.*2 or more"),
        ({"draws": 1}, "draws=1"),
        ({"spread": -1.0}, "spread=-1.0.*0 or more"),
        ({"spread": math.nan}, "spread=nan"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SweepConfig(**settings)  # type: ignore[arg-type]
