"""The linear probe: the accuracy of a linear layer on frozen features.

Shapes: N training and T test samples, F features, C classes. A data set is a pair of images, uint8
(N, 3, H, W), and labels (N,). Accuracies are in percent of all test samples.

Transfer is the same probe on another data set's images.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intnacl.data.draws import check_seed
from intnacl.data.streamed import Images
from intnacl.errors import InputError, Settings, check_count, check_number, one_of, setting
from intnacl.evaluation.confusion import Confusion, confusion
from intnacl.evaluation.features import check_finite, extract_pair
from intnacl.evaluation.logistic import Problem, adam, count_correct, lbfgs, pad_columns
from intnacl.evaluation.precision import exact_matmul

FORMAT = 1  # raise it when the same settings give other figures: stored ones are then measured again
LARGEST = 1e20  # rate or decay: products of them with features and step counts fit into float32


class EpochFigures(TypedDict, total=False):
    """Figures of solvers that train by epochs."""

    best_accuracy: float
    """The highest of the curve. Do not report it: it is chosen on the test set."""
    best_epoch: int
    """Counted from 1, the first of equals."""
    curve: list[float]
    """Test accuracy after each epoch."""


class ProbeFigures(EpochFigures):
    """Accuracies at the end, the number of classes, and the confusion of the test samples."""

    accuracy: float
    train_accuracy: float
    classes: int
    confusion: Confusion


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(Settings):
    """Training of the linear probe. The defaults are those of the code that the paper builds on (CLAE)."""

    solver: str = setting("adam", one_of("adam", "lbfgs"))
    """"adam": minibatches for `epochs`; "lbfgs": the full batch for `max_iter` iterations."""
    epochs: int = setting(1000, check_count)
    """Passes over the features (adam)."""
    batch_size: int = setting(256, check_count)
    """Samples per batch (adam)."""
    lr: float = setting(3e-4, partial(check_number, zero=False, high=LARGEST))
    """Learning rate (adam)."""
    l2: float = setting(0.0, partial(check_number, high=LARGEST))
    """Weight decay: with adam, of weights and bias; with lbfgs, of the weights only."""
    normalize: bool = False
    """Scale each sample's features to length 1."""
    standardize: bool = False
    """Then standardise features to mean 0 and deviation 1 over training samples; the layer includes this."""
    max_iter: int = setting(200, check_count)
    """Maximum number of iterations (lbfgs)."""
    seed: int = setting(0, check_seed)
    """Random seed for initial weights and the order of samples (adam)."""

    @property
    def passes(self) -> int:
        """The maximum number of passes over the training features: epochs, or L-BFGS's evaluations."""
        return self.epochs if self.solver == "adam" else self.max_iter * 5 // 4


class Classifier(nn.Module):
    """Pixels (B, 3, H, W) in [0, 1] -> logits (B, C): an encoder and the probe's linear layer."""

    def __init__(self, encoder: nn.Module, linear: nn.Linear, *, normalize: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.linear = linear
        self.normalize = normalize

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of pixels."""
        return self.classify(self.encoder(x))

    def classify(self, features: Tensor) -> Tensor:
        """Return the logits of features (B, F) that the encoder has already computed."""
        features = features.to(self.linear.weight.dtype)
        logits: Tensor = self.linear(F.normalize(features, dim=1) if self.normalize else features)
        return logits


def evaluate(
    encoder: nn.Module,
    train: tuple[Images, Tensor],
    test: tuple[Images, Tensor],
    config: ProbeConfig | None = None,
    *,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
) -> tuple[Classifier, ProbeFigures]:
    """Probe an encoder: features of `train` and `test` once, then `fit`.

    Returns the classifier in eval mode, ready to be attacked, and the figures of `fit`. `batch_size` is for
    the extraction of features.
    """
    train_NF, test_TF = extract_pair(encoder, train, test, batch_size=batch_size, device=device)
    config = config or ProbeConfig()
    linear, figures = fit(train_NF, train[1], test_TF, test[1], config)
    return Classifier(encoder, linear, normalize=config.normalize).eval(), figures


def fit(
    train_NF: Tensor,
    train_N: Tensor,
    test_TF: Tensor,
    test_T: Tensor,
    config: ProbeConfig | None = None,
    *,
    each_pass: Callable[[], None] = lambda: None,
) -> tuple[nn.Linear, ProbeFigures]:
    """Train the linear layer on features and labels, on the device of the training features.

    With `config.normalize` the layer expects features of length 1. Adam adds figures by epoch. `each_pass` is
    called after each pass over the training features.
    """
    config = config or ProbeConfig()
    check_finite(train_NF, test_TF)
    # In half precision, Adam's small updates would be lost.
    train_NF, test_TF = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (train_NF, test_TF))
    if config.normalize:
        train_NF, test_TF = F.normalize(train_NF, dim=1), F.normalize(test_TF, dim=1)
    shift_F, scale_F = torch.zeros_like(train_NF[0]), torch.ones_like(train_NF[0])
    if config.standardize:
        deviation_F = train_NF.std(dim=0, correction=0)  # 0 for a constant feature, which is only shifted
        shift_F, scale_F = train_NF.mean(dim=0), torch.where(deviation_F > 0, deviation_F, 1)
    problem = Problem(
        x=pad_columns((train_NF - shift_F) / scale_F),
        y=train_N.to(train_NF.device),
        test_x=pad_columns((test_TF.to(shift_F) - shift_F) / scale_F),
        test_y=test_T.to(train_NF.device),
        features=train_NF.shape[1],
        classes=int(max(train_N.max(), test_T.max())) + 1,
    )
    with exact_matmul():
        correct: list[int] = []
        if config.solver == "adam":
            theta_KC, correct = adam(
                problem, epochs=config.epochs, batch_size=config.batch_size, lr=config.lr, l2=config.l2,
                seed=config.seed, each_pass=each_pass,
            )  # fmt: skip
        else:
            theta_KC = lbfgs(problem, max_iter=config.max_iter, l2=config.l2, each_pass=each_pass)
        if not theta_KC.isfinite().all():
            raise InputError(f"the probe diverged at lr={config.lr}: lower it, or set standardize.")
        counts = confusion((problem.test_x @ theta_KC).argmax(dim=1), test_T, problem.classes)
        train_right = int(count_correct(theta_KC, problem.x, problem.y))
        # As a layer on raw features: W = w/scale, b − W·shift.
        weight_CF = theta_KC[: problem.features].T / scale_F
        linear = as_linear(weight_CF, theta_KC[problem.features] - weight_CF @ shift_F)
    figures: ProbeFigures = {
        "accuracy": 100 * sum(counts[i][i] for i in range(problem.classes)) / len(test_T),
        "train_accuracy": 100 * train_right / len(train_N),
        "classes": problem.classes,
        "confusion": counts,
        **epoch_figures([100 * count / len(test_T) for count in correct]),
    }
    return linear.requires_grad_(False), figures


def epoch_figures(accuracies: list[float]) -> EpochFigures:
    """Return the figures that follow from the test accuracy after each epoch; none without epochs."""
    if not accuracies:
        return {}
    best = max(accuracies)
    return {"best_accuracy": best, "best_epoch": accuracies.index(best) + 1, "curve": accuracies}


def as_linear(weight_CF: Tensor, bias_C: Tensor) -> nn.Linear:
    """Return a layer with these weights; nothing is drawn from the global generator."""
    linear = nn.Linear(weight_CF.shape[1], weight_CF.shape[0], device="meta")
    linear.weight, linear.bias = nn.Parameter(weight_CF.contiguous()), nn.Parameter(bias_C)
    return linear
