"""Rademacher complexity by Monte Carlo against classes whose complexity is known."""

import pytest
import torch

from intnacl.errors import InputError
from intnacl.theory.rademacher import complexity


def test_one_function_has_none() -> None:
    estimate, error = complexity(torch.randn(1, 50))
    assert estimate == pytest.approx(0, abs=1e-5)
    assert error == pytest.approx(0, abs=1e-5)


def test_a_function_and_its_negative() -> None:
    """sup over ±1 of σ·g is |Σσ|, whose mean for T = 2 is 1."""
    estimate, error = complexity(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), draws=4000)
    assert estimate == pytest.approx(1.0, abs=4 * error)
    assert 0 < error < 0.03


def test_all_sign_patterns_fit_any_noise() -> None:
    patterns = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 6)
    assert complexity(patterns)[0] == pytest.approx(6.0)


def test_a_common_shift_changes_nothing() -> None:
    values = torch.randn(5, 30, dtype=torch.float64)
    assert complexity(values + 100 * torch.randn(30, dtype=torch.float64))[0] == pytest.approx(
        complexity(values)[0]
    )


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match=r"\(3,\)"):
        complexity(torch.zeros(3))
