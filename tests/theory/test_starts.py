"""The starts of NCA's matrix: shapes, and which one "auto" takes."""

import numpy as np
import pytest
from sklearn.datasets import load_iris

from intnacl.theory.starts import STARTS

X, y = load_iris(return_X_y=True)


def start(name: str, components: int, points: int = 150, labels: np.ndarray = y) -> np.ndarray:
    return STARTS[name](X[:points], labels[:points], components, np.random.RandomState(0))


@pytest.mark.parametrize("name", STARTS)
def test_shape_is_components_by_features(name: str) -> None:
    assert start(name, 2).shape == (2, 4)


@pytest.mark.parametrize(("components", "chosen"), [(2, "lda"), (3, "pca"), (4, "identity")])
def test_auto_takes_the_best_that_the_sizes_allow(components: int, chosen: str) -> None:
    np.testing.assert_array_equal(start("auto", components), start(chosen, components))


def test_auto_leaves_discriminants_that_coincide() -> None:
    """Three classes, of which two have the same points: one discriminant only."""
    doubled, labels = np.vstack([X[:50], X[50:100], X[50:100]]), np.repeat([0, 1, 2], 50)
    assert len(STARTS["lda"](doubled, labels, 2, np.random.RandomState(0))) == 1
    assert STARTS["auto"](doubled, labels, 2, np.random.RandomState(0)).shape == (2, 4)


def test_principal_components_are_orthonormal_and_discriminants_separate() -> None:
    np.testing.assert_allclose(start("pca", 3) @ start("pca", 3).T, np.eye(3), atol=1e-12)
    z = X @ start("lda", 1).T
    means = [z[y == k].mean() for k in range(3)]
    assert np.ptp(means) > 5 * max(z[y == k].std() for k in range(3))
