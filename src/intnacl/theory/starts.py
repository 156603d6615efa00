"""Where NCA's matrix A begins: the objective has many minima, so the start matters.

Shapes: B points, F input features, D components.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

Array = npt.NDArray[Any]


def _pca(X_BF: Array, y_B: Array, D: int, rng: np.random.RandomState) -> Array:
    fitted: Array = PCA(D, random_state=rng).fit(X_BF).components_
    return fitted


def _lda(X_BF: Array, y_B: Array, D: int, rng: np.random.RandomState) -> Array:
    fitted: Array = LinearDiscriminantAnalysis(n_components=D).fit(X_BF, y_B).scalings_.T[:D]
    return fitted


def _identity(X_BF: Array, y_B: Array, D: int, rng: np.random.RandomState) -> Array:
    return np.eye(D, X_BF.shape[1])


def _random(X_BF: Array, y_B: Array, D: int, rng: np.random.RandomState) -> Array:
    start: Array = rng.standard_normal((D, X_BF.shape[1])) / np.sqrt(X_BF.shape[1])
    return start


def _auto(X_BF: Array, y_B: Array, D: int, rng: np.random.RandomState) -> Array:
    """The best start that the data allow: discriminants, else principal components, else the identity."""
    if min(X_BF.shape[1], len(np.unique(y_B)) - 1) >= D and len(start := _lda(X_BF, y_B, D, rng)) == D:
        return start
    return (_pca if min(X_BF.shape) > D else _identity)(X_BF, y_B, D, rng)


STARTS: dict[str, Callable[[Array, Array, int, np.random.RandomState], Array]] = {
    "auto": _auto,
    "lda": _lda,
    "pca": _pca,
    "identity": _identity,
    "random": _random,
}
