"""The comparison of NCA with other methods on the same points, and clear errors."""

import numpy as np
import pytest

from intnacl.theory.comparison import TABLES, ComparisonConfig, Space, learn_spaces, load_table, measure
from mistakes import refused


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_standardised(name):
    X, y = load_table(name)
    np.testing.assert_allclose(X.mean(0), 0, atol=1e-9)
    assert len(X) == len(y)
    assert y.min() == 0


def test_learned_spaces_beat_principal_components():
    X, y = load_table("wine")
    figures = measure(learn_spaces(X, y, ComparisonConfig(dataset="wine")), y)
    assert list(figures) == ["input", "PCA", "NCA, scikit-learn", "NCA, total variation", "NCA, KL"]
    for name in ("NCA, total variation", "NCA, KL"):
        assert figures[name]["1-NN"] > figures["PCA"]["1-NN"] + 2
        assert figures[name]["seconds"] > 0


def test_measure_is_in_percent():
    twice = np.array([[0.0], [0.1], [5.0], [5.1], [0.05]] * 2)
    figures = measure({"line": Space(twice, 0.0)}, np.array([0, 0, 1, 1, 1] * 2))["line"]
    assert figures["1-NN"] == 100.0  # each point lies on its own copy
    assert figures["5-NN"] == 80.0  # of five neighbours, the point between the zeros sees four zeros


WRONG = (("n_components", 0), ("n_components", 5), ("max_iter", 0), ("dataset", "irs"), ("seed", -1))
test_bad_settings_are_named = refused(
    lambda given: learn_spaces(*load_table("iris"), ComparisonConfig(**{"dataset": "iris"} | given)),
    *(({name: value}, f"{name}={value!r}") for name, value in WRONG),
)
