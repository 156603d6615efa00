"""NCA compared with its alternatives on a small labelled table, by leave-one-out accuracy and seconds.

Shapes: B points, F input features, D components.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from sklearn.preprocessing import StandardScaler

from intnacl.errors import InputError, check_choice
from intnacl.theory.nca import NCA
from intnacl.theory.neighbours import leave_one_out_accuracy

Array = npt.NDArray[Any]
TABLES: dict[str, Callable[..., tuple[Array, Array]]] = {
    "iris": load_iris,
    "wine": load_wine,
    "breast_cancer": load_breast_cancer,
    "digits": load_digits,
}


@dataclass(frozen=True, kw_only=True)
class ComparisonConfig:
    """The settings of a comparison; scikit-learn's NCA and ours share start, iterations and tolerance."""

    dataset: str = "digits"
    """iris, wine, breast_cancer or digits; features are standardised."""
    n_components: int = 2
    """Dimensions of the learned space."""
    max_iter: int = 50
    """Iterations of L-BFGS, or epochs when there is a batch size."""
    batch_size: int | None = None
    """None: the whole set at once."""
    device: str = "auto"
    """The device of this package's NCA: auto, cpu, cuda."""
    seed: int = 0
    """Seed of the starting maps and the batches."""

    def __post_init__(self) -> None:
        check_choice("dataset", self.dataset, TABLES)
        if self.n_components < 1 or self.max_iter < 1:
            raise InputError(
                f"n_components={self.n_components}, max_iter={self.max_iter}: both must be 1 or more."
            )
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed={self.seed} must lie in 0…{2**32 - 1}.")


class Space(NamedTuple):
    """The points as a method maps them, and the time it took to learn the map."""

    points: Array
    """(B, D)."""
    seconds: float


def load_table(name: str) -> tuple[Array, Array]:
    """Return standardised features (B, F) and class indices (B,) of one of `TABLES`."""
    check_choice("dataset", name, TABLES)
    X_BF, y_B = TABLES[name](return_X_y=True)
    return StandardScaler().fit_transform(X_BF), y_B


def learn_spaces(X_BF: Array, y_B: Array, config: ComparisonConfig) -> dict[str, Space]:
    """Map the same points by each method."""
    D, seed, steps = config.n_components, config.seed, config.max_iter
    if X_BF.shape[1] < D:
        raise InputError(f"n_components={D} exceeds the {X_BF.shape[1]} features of {config.dataset}.")
    nca = partial(
        NCA, D, max_iter=steps, batch_size=config.batch_size, device=config.device, random_state=seed
    )
    methods = {
        "PCA": PCA(D, random_state=seed),
        "NCA, scikit-learn": NeighborhoodComponentsAnalysis(D, max_iter=steps, random_state=seed),
        "NCA, total variation": nca(objective="tv"),
        "NCA, KL": nca(objective="kl"),
    }
    spaces = {"input": Space(X_BF, 0.0)}
    for name, method in methods.items():
        start = time.perf_counter()
        z_BD = method.fit(X_BF, y_B).transform(X_BF)
        spaces[name] = Space(np.asarray(z_BD), time.perf_counter() - start)
    return spaces


def measure(spaces: dict[str, Space], y_B: Array) -> dict[str, dict[str, float]]:
    """Return each space's leave-one-out accuracy of 1 and 5 neighbours, in percent, and its seconds."""
    labels_B = torch.as_tensor(y_B)
    return {
        name: {
            f"{k}-NN": 100 * leave_one_out_accuracy(torch.as_tensor(space.points), labels_B, k)
            for k in (1, 5)
        }
        | {"seconds": space.seconds}
        for name, space in spaces.items()
    }
