"""k-nearest-neighbour classification of features by cosine.

    score_c(x) = Σ_{i ∈ k nearest of x, y_i = c} w_i

with the weights of instance discrimination (Wu et al. 2018), w_i = exp(cos(x, x_i) / temperature), or with
w_i = 1.

Shapes: N training and T test samples, B test samples of a tile, F features, C classes.
"""

from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from intnacl.data.streamed import Images
from intnacl.errors import InputError, Settings, must, one_of, setting
from intnacl.evaluation.features import check_finite, extract_pair

FORMAT = 1  # raise it when the same settings give other figures: stored ones are then measured again
POSITIVE = must(lambda v: v > 0, "positive")
WEIGHTS = ("exp", "uniform")


class KnnFigures(TypedDict):
    """Accuracy in percent of all test samples, and the numbers of neighbours and classes."""

    accuracy: float
    k: int
    classes: int


@dataclass(frozen=True, kw_only=True)
class KnnConfig(Settings):
    """The neighbours and their weights."""

    k: int = setting(200, POSITIVE)
    weights: str = setting("exp", one_of(*WEIGHTS))
    """"exp": by similarity; "uniform": every neighbour has one vote, and ties go to the lowest class."""
    temperature: float = setting(0.1, POSITIVE)
    """Temperature of the weights "exp"."""
    tile: int = setting(1024, POSITIVE)
    """Test samples compared with all training samples at once: memory is tile × N."""


def suited(samples: int, classes: int) -> KnnConfig:
    """Return settings with 200 neighbours, or the samples per class if fewer: more would outvote a class."""
    return KnnConfig(k=max(1, min(KnnConfig.k, samples // classes)))


def evaluate(
    encoder: nn.Module,
    train: tuple[Images, Tensor],
    test: tuple[Images, Tensor],
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

    `own_T` are the training indices of test samples that are training samples: none is its own neighbour.
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
        if config.weights == "uniform":
            weight_Bk = torch.ones_like(cosine_Bk)
        else:  # relative to the nearest neighbour's weight, so that not all underflow
            weight_Bk = ((cosine_Bk - cosine_Bk[:, :1]) / config.temperature).exp()
        score_BC = cosine_BN.new_zeros(len(rows_B), classes)
        predicted.append(score_BC.scatter_add_(1, labels_N[neighbour_Bk], weight_Bk).argmax(dim=1))
    return torch.cat(predicted)
