"""Weighted k-nearest-neighbour classification of features, as in instance discrimination (Wu et al. 2018).

    score_c(x) = Σ_{i ∈ k nearest of x, y_i = c} exp(cos(x, x_i) / temperature)

Shapes: N training and T test samples, B test samples of a tile, F features, C classes.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from intnacl.errors import InputError, Settings, must, setting
from intnacl.evaluation.features import check_finite, extract_pair

POSITIVE = must(lambda v: v > 0, "positive")


@dataclass(frozen=True, kw_only=True)
class KnnConfig(Settings):
    """The neighbours and their weights."""

    k: int = setting(200, POSITIVE)
    temperature: float = setting(0.1, POSITIVE)
    tile: int = setting(
        1024, POSITIVE
    )  # test samples compared with all training samples at once: memory is tile × N


def suited(samples: int, classes: int) -> KnnConfig:
    """200 neighbours, or as many as a class has where that is fewer: more would outvote it."""
    return KnnConfig(k=max(1, min(KnnConfig.k, samples // classes)))


def evaluate(
    encoder: nn.Module,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    config: KnnConfig | None = None,
    *,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """kNN accuracy of an encoder on (images, labels), in percent: features once, then `score`."""
    train_NF, test_TF = extract_pair(encoder, train, test, batch_size=batch_size, device=device)
    return score(train_NF, train[1], test_TF, test[1], config)


def score(
    train_NF: Tensor, train_N: Tensor, test_TF: Tensor, test_T: Tensor, config: KnnConfig | None = None
) -> dict[str, Any]:
    """Figures: `accuracy` in percent of all test samples, `k`, and the number of `classes`."""
    config = config or KnnConfig()
    check_finite(train_NF, test_TF)
    classes = int(max(train_N.max(), test_T.max())) + 1
    predicted_T = predict(train_NF, train_N, test_TF, config, classes=classes)
    correct = int((predicted_T == test_T.to(predicted_T.device)).sum())
    return {"accuracy": 100 * correct / len(test_T), "k": config.k, "classes": classes}


def predict(train_NF: Tensor, train_N: Tensor, test_TF: Tensor, config: KnnConfig, *, classes: int) -> Tensor:
    """The class of largest score for each test sample: (T,), where the training features live."""
    if config.k > len(train_NF):
        raise InputError(f"k={config.k} neighbours of {len(train_NF)} training samples: choose a smaller k.")
    train_NF, labels_N = functional.normalize(train_NF, dim=1), train_N.to(train_NF.device)
    tiles = torch.split(functional.normalize(test_TF.to(train_NF), dim=1), config.tile)
    return torch.cat([_vote(train_NF, labels_N, tile_BF, config, classes) for tile_BF in tiles])


def _vote(train_NF: Tensor, labels_N: Tensor, tile_BF: Tensor, config: KnnConfig, classes: int) -> Tensor:
    """The vote of one tile. Weights are relative to the nearest one's, which is 1: not all can vanish."""
    cosine_Bk, neighbour_Bk = (tile_BF @ train_NF.T).topk(config.k, dim=1)
    weight_Bk = ((cosine_Bk - cosine_Bk[:, :1]) / config.temperature).exp()
    score_BC = tile_BF.new_zeros(len(tile_BF), classes)
    return score_BC.scatter_add_(1, labels_N[neighbour_Bk], weight_Bk).argmax(dim=1)
