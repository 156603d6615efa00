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
from intnacl.evaluation.features import check_finite, check_pair, extract, extract_pair

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
    train_NF: Tensor,
    train_N: Tensor,
    test_TF: Tensor,
    test_T: Tensor,
    config: KnnConfig | None = None,
    *,
    own_T: Tensor | None = None,
) -> KnnFigures:
    """Return the figures of labelled features; `own_T` as in `predict`."""
    config = config or KnnConfig()
    check_finite(train_NF, test_TF)
    classes = int(max(train_N.max(), test_T.max())) + 1
    predicted_T = predict(train_NF, train_N, test_TF, config, classes=classes, own_T=own_T)
    correct = int((predicted_T == test_T.to(predicted_T.device)).sum())
    return {"accuracy": 100 * correct / len(test_T), "k": config.k, "classes": classes}


def predict(
    train_NF: Tensor,
    train_N: Tensor,
    test_TF: Tensor,
    config: KnnConfig,
    *,
    classes: int,
    own_T: Tensor | None = None,
) -> Tensor:
    """Return the class of largest score for each test sample: (T,), on the training features' device.

    `own_T` are the places of test samples that are training samples too, and are no neighbours of themselves.
    """
    most = len(train_NF) - (own_T is not None)
    if config.k > most:
        raise InputError(f"k={config.k} neighbours of {most} training samples: choose a smaller k.")
    train_NF, labels_N = functional.normalize(train_NF, dim=1), train_N.to(train_NF.device)
    predicted = []
    for rows_B in torch.split(torch.arange(len(test_TF)), config.tile):
        cosine_BN = functional.normalize(test_TF[rows_B].to(train_NF), dim=1) @ train_NF.T
        if own_T is not None:
            cosine_BN.scatter_(1, own_T[rows_B, None].to(cosine_BN.device), -torch.inf)
        cosine_Bk, neighbour_Bk = cosine_BN.topk(config.k, dim=1)
        # Relative to the nearest one's weight, which is 1: not all can vanish.
        weight_Bk = ((cosine_Bk - cosine_Bk[:, :1]) / config.temperature).exp()
        score_BC = cosine_BN.new_zeros(len(rows_B), classes)
        predicted.append(score_BC.scatter_add_(1, labels_N[neighbour_Bk], weight_Bk).argmax(dim=1))
    return torch.cat(predicted)


class KnnMonitor:
    """The kNN accuracy of an encoder in training, with at most 10,000 training images for neighbours.

    It is the accuracy on at most 2,000 images that were held out. Without any, as many of the training images
    are classified, each by the others. Test images take no part.
    """

    def __init__(self, train: Dataset, held_out: Dataset | None, device: torch.device) -> None:
        self.train, self.device = _sample(train, 10_000), device
        count = len(self.train[0])
        if held_out is None:
            self.name, self.held_out = "knn_train", None
            self.own_T: Tensor | None = torch.arange(min(2_000, count)) * count // min(2_000, count)
            self.config = suited(count - 1, len(train.classes))
        else:
            self.name, self.held_out, self.own_T = "knn", _sample(held_out, 2_000), None
            check_pair(self.train, self.held_out)
            self.config = suited(count, len(train.classes))

    def __call__(self, encoder: nn.Module) -> dict[str, float]:
        """Return {"knn": percent} of held-out images, or {"knn_train": percent} of training images."""
        images, labels_N = self.train
        features_NF = extract(encoder, images, device=self.device)
        if self.held_out is None:
            queries = features_NF[self.own_T], labels_N[self.own_T]
        else:
            queries = extract(encoder, self.held_out[0], device=self.device), self.held_out[1]
        figures = score(features_NF, labels_N, *queries, self.config, own_T=self.own_T)
        return {self.name: figures["accuracy"]}


def _sample(dataset: Dataset, count: int) -> tuple[Tensor, Tensor]:
    """Return images from all over the set, since some sets are sorted by class."""
    assert dataset.labels is not None
    chosen = dataset.spread(count)
    return dataset.images[chosen], dataset.labels[chosen]
