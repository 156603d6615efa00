"""docs/theory.md quotes numbers that hold."""

import re
from pathlib import Path

import pytest

from intnacl.theory.sweep import SweepConfig, sweep

TEXT = (Path(__file__).parents[1] / "docs" / "theory.md").read_text()


def numbers(start: str) -> list[float]:
    """The numbers of the table row that begins so."""
    (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| {start}")]
    return [float(cell) for cell in re.findall(r"[\d.]+", row.removeprefix(f"| {start}"))]


def test_quoted_measurements_hold() -> None:
    measured = sweep(SweepConfig(draws=4000))
    for row, key in (("M·N·G |", "MN"), ("N·G |", "N")):
        assert numbers(row) == pytest.approx([r[key] for r in measured["complexity"]], abs=0.051)
    for row, name in (
        ("features at ±1.3 rad, and at π |", "two classes"),
        ("exclusive or: at 0 and π, and at ±π/2 |", "exclusive or"),
    ):
        losses = measured["lemma"][name]
        expected = [losses[0]["sup"], losses[0]["sup_mean"], *(r["unbiased"] for r in losses[:4])]
        assert numbers(row) == pytest.approx(expected, abs=5e-4)
    last = measured["n"][-1]
    assert last["plain_gap"] == pytest.approx(0.158, abs=5e-4)
    assert last["gap"] < 0.001
    assert 0.08 < measured["n"][3]["spread"] / measured["n"][3]["proved"] < 0.12
