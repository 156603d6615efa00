"""Weighted k-nearest-neighbour classification of features, as in instance discrimination (Wu et al. 2018).

    score_c(x) = Σ_{i ∈ k nearest of x, y_i = c} exp(cos(x, x_i) / temperature)

Shapes: N training and T test samples, B test samples of a tile, F features, C classes.
"""

from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from intnacl.data.datasets import Dataset
from intnacl.errors import InputError, Settings, must, setting
from intnacl.evaluation.features import check_finite, check_pair, extract_pair

FORMAT = 1  # raise it when the same settings give other figures: stored ones are then measured again
POSITIVE = must(lambda v: v > 0, "positive")


class KnnFigures(TypedDict):
    """Accuracy in percent of all test samples, the number of neighbours, and that of classes."""

    accuracy: float
    k: int
    classes: int


@dataclass(frozen=True, kw_only=True)
class KnnConfig(Settings):
    """The neighbours and their weights."""

    k: int = setting(200, POSITIVE)
    temperature: float = setting(0.1, POSITIVE)
    tile: int = setting(1024, POSITIVE)
    """Test samples compared with all training samples at once: memory is tile × N."""


def suited(samples: int, classes: int) -> KnnConfig:
    """Return settings with 200 neighbours, or as many as a class has samples: more would outvote it."""
    return KnnConfig(k=max(1, min(KnnConfig.k, samples // classes)))


def evaluate(
    encoder: nn.Module,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    config: KnnConfig | None = None,
    *,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
) -> KnnFigures:
    """Return the kNN figures of an encoder on (images, labels): features once, then `score`."""
    train_NF, test_TF = extract_pair(encoder, train, test, batch_size=batch_size, device=device)
    return score(train_NF, train[1], test_TF, test[1], config)


def score(
    train_NF: Tensor, train_N: Tensor, test_TF: Tensor, test_T: Tensor, config: KnnConfig | None = None
) -> KnnFigures:
    """Return the figures of labelled features."""
    config = config or KnnConfig()
    check_finite(train_NF, test_TF)
    classes = int(max(train_N.max(), test_T.max())) + 1
    predicted_T = predict(train_NF, train_N, test_TF, config, classes=classes)
    correct = int((predicted_T == test_T.to(predicted_T.device)).sum())
    return {"accuracy": 100 * correct / len(test_T), "k": config.k, "classes": classes}


def predict(train_NF: Tensor, train_N: Tensor, test_TF: Tensor, config: KnnConfig, *, classes: int) -> Tensor:
    """Return the class of largest score for each test sample: (T,), on the training features' device."""
    if config.k > len(train_NF):
        raise InputError(f"k={config.k} neighbours of {len(train_NF)} training samples: choose a smaller k.")
    train_NF, labels_N = functional.normalize(train_NF, dim=1), train_N.to(train_NF.device)
    predicted = []
    for tile_BF in torch.split(functional.normalize(test_TF.to(train_NF), dim=1), config.tile):
        cosine_Bk, neighbour_Bk = (tile_BF @ train_NF.T).topk(config.k, dim=1)
        # Relative to the nearest one's weight, which is 1: not all can vanish.
        weight_Bk = ((cosine_Bk - cosine_Bk[:, :1]) / config.temperature).exp()
        score_BC = tile_BF.new_zeros(len(tile_BF), classes)
        predicted.append(score_BC.scatter_add_(1, labels_N[neighbour_Bk], weight_Bk).argmax(dim=1))
    return torch.cat(predicted)


class KnnMonitor:
    """The kNN accuracy of an encoder in training, on at most 10,000 training and 2,000 test images."""

    def __init__(self, train: Dataset, test: Dataset, device: torch.device) -> None:
        self.train, self.test = _sample(train, 10_000), _sample(test, 2_000)
        check_pair(self.train, self.test)
        self.config = suited(len(self.train[0]), len(train.classes))
        self.device = device

    def __call__(self, encoder: nn.Module) -> dict[str, float]:
        """Return {"knn": percent}."""
        figures = evaluate(encoder, self.train, self.test, self.config, device=self.device)
        return {"knn": figures["accuracy"]}


def _sample(dataset: Dataset, count: int) -> tuple[Tensor, Tensor]:
    """Return images from all over the set, since some sets are sorted by class."""
    assert dataset.labels is not None
    chosen = dataset.spread(count)
    return dataset.images[chosen], dataset.labels[chosen]
