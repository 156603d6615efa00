"""The linear probe: how well a linear layer on frozen features classifies.

Shapes: N training and T test samples, F features, C classes. A data set is a pair of images, uint8
(N, 3, H, W), and labels (N,). Accuracies are in percent of all test samples.

Transfer is the same probe on another data set's images.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intnacl.data.draws import check_seed
from intnacl.errors import InputError, Settings, check_count, check_number, one_of, setting
from intnacl.evaluation.features import check_finite, extract_pair
from intnacl.evaluation.logistic import Problem, adam, count_correct, lbfgs, pad_columns
from intnacl.evaluation.precision import exact_matmul

Solution = tuple[Tensor, list[int]]  # θ (K, C), and the right test samples after each epoch, if any


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(Settings):
    """How the linear probe is trained; the defaults are those of the code that the paper builds on (CLAE)."""

    solver: str = setting("adam", one_of("adam", "lbfgs"))
    """"adam": minibatches for `epochs`; "lbfgs": the full batch for `max_iter` iterations."""
    epochs: int = setting(1000, check_count)
    """Passes over the features (adam)."""
    batch_size: int = setting(256, check_count)
    """Samples per batch (adam)."""
    lr: float = setting(3e-4, partial(check_number, zero=False))
    """Learning rate (adam)."""
    l2: float = setting(0.0, check_number)
    """Adam: weight decay on weights and bias; L-BFGS spares the bias."""
    normalize: bool = False
    """Whether each sample's features get length 1."""
    standardize: bool = False
    """Whether features then get the training samples' mean 0 and deviation 1; folded into the layer."""
    max_iter: int = setting(200, check_count)
    """Iterations at most (lbfgs)."""
    seed: int = setting(0, check_seed)
    """Random seed for initial weights and the order of samples (adam)."""

    @property
    def passes(self) -> int:
        """Over the training features: Adam's epochs, or the evaluations that end L-BFGS at the latest."""
        return self.epochs if self.solver == "adam" else self.max_iter * 5 // 4


class Classifier(nn.Module):
    """Pixels (B, 3, H, W) in [0, 1] -> logits (B, C): an encoder and the probe's linear layer."""

    def __init__(self, encoder: nn.Module, linear: nn.Linear, *, normalize: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.linear = linear
        self.normalize = normalize

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of pixels."""
        features = self.encoder(x).to(self.linear.weight.dtype)
        logits: Tensor = self.linear(F.normalize(features, dim=1) if self.normalize else features)
        return logits


def evaluate(
    encoder: nn.Module,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    config: ProbeConfig | None = None,
    *,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
) -> tuple[Classifier, dict[str, Any]]:
    """Probe an encoder: features of `train` and `test` once, then `fit`.

    Returns the classifier in eval mode, ready to be attacked, and the figures of `fit`. `batch_size` is
    that of the feature extraction.
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
) -> tuple[nn.Linear, dict[str, Any]]:
    """Train the linear layer on features and labels, where the training features live.

    With `config.normalize` the layer is one for features of length 1.

    Figures: `accuracy` (last epoch), `train_accuracy`, `classes`; from Adam also `curve`, the test accuracy
    after each epoch, and its maximum `best_accuracy` at `best_epoch`. Report `accuracy`: the best epoch is
    chosen on the test set. `each_pass` is called after each pass over the training features.
    """
    config = config or ProbeConfig()
    check_finite(train_NF, test_TF)
    # In half precision, Adam's small updates would be lost.
    train_NF, test_TF = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (train_NF, test_TF))
    if config.normalize:
        train_NF, test_TF = F.normalize(train_NF, dim=1), F.normalize(test_TF, dim=1)
    shift_F, scale_F = _moments(train_NF) if config.standardize else _identity(train_NF)
    problem = _problem(
        ((train_NF - shift_F) / scale_F, train_N), ((test_TF.to(shift_F) - shift_F) / scale_F, test_T)
    )
    with exact_matmul():
        theta_KC, correct = SOLVERS[config.solver](problem, config, each_pass)
        figures = _figures(theta_KC, problem, correct)
        linear = _unscaled(theta_KC, problem, shift_F, scale_F)
    if not theta_KC.isfinite().all():
        raise InputError(f"the probe diverged at lr={config.lr}: lower it, or set standardize.")
    return linear, figures


def _solve_adam(problem: Problem, c: ProbeConfig, each_pass: Callable[[], None]) -> Solution:
    return adam(
        problem,
        epochs=c.epochs,
        batch_size=c.batch_size,
        lr=c.lr,
        l2=c.l2,
        seed=c.seed,
        each_pass=each_pass,
    )


def _solve_lbfgs(problem: Problem, c: ProbeConfig, each_pass: Callable[[], None]) -> Solution:
    return lbfgs(problem, max_iter=c.max_iter, l2=c.l2, each_pass=each_pass), []


SOLVERS: dict[str, Callable[[Problem, ProbeConfig, Callable[[], None]], Solution]] = {
    "adam": _solve_adam,
    "lbfgs": _solve_lbfgs,
}


def _problem(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Problem:
    device = train[0].device
    return Problem(
        x=pad_columns(train[0]),
        y=train[1].to(device),
        test_x=pad_columns(test[0]),
        test_y=test[1].to(device),
        features=train[0].shape[1],
        classes=int(max(train[1].max(), test[1].max())) + 1,
    )


def _figures(theta_KC: Tensor, problem: Problem, correct: list[int]) -> dict[str, Any]:
    test = count_correct(theta_KC, problem.test_x, problem.test_y)
    train = count_correct(theta_KC, problem.x, problem.y)
    figures = {
        "accuracy": _percent(int(test), len(problem.test_y)),
        "train_accuracy": _percent(int(train), len(problem.y)),
        "classes": problem.classes,
    }
    return figures | summarize([_percent(count, len(problem.test_y)) for count in correct])


def summarize(accuracies: list[float]) -> dict[str, Any]:
    """The best epoch, counted from 1 and the first of equals, beside the whole curve."""
    if not accuracies:
        return {}
    best = max(accuracies)
    return {"best_accuracy": best, "best_epoch": accuracies.index(best) + 1, "curve": accuracies}


def _percent(count: int, of: int) -> float:
    return 100 * count / of


def _moments(x_NF: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each feature; a constant feature is only shifted."""
    deviation_F = x_NF.std(dim=0, correction=0)
    return x_NF.mean(dim=0), torch.where(deviation_F > 0, deviation_F, 1)


def _identity(x_NF: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(x_NF[0]), torch.ones_like(x_NF[0])


def _unscaled(theta_KC: Tensor, problem: Problem, shift_F: Tensor, scale_F: Tensor) -> nn.Linear:
    """θ as a layer on raw features: W = w/scale, b − W·shift."""
    weight_CF = theta_KC[: problem.features].T / scale_F
    return as_linear(weight_CF, theta_KC[problem.features] - weight_CF @ shift_F).requires_grad_(False)


def as_linear(weight_CF: Tensor, bias_C: Tensor) -> nn.Linear:
    """A layer with these weights; nothing is drawn from the global generator."""
    linear = nn.Linear(weight_CF.shape[1], weight_CF.shape[0], device="meta")
    linear.weight, linear.bias = nn.Parameter(weight_CF.contiguous()), nn.Parameter(bias_C)
    return linear
