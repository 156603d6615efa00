"""Published values are found by the run's configuration, and only by the right one."""

import pytest

from intnacl.paper import published
from intnacl.runs.config import RunConfig, resolve

TINY = resolve({"dataset": "tinyimagenet", "loss.weight": "one"}, preset="intcl")
MIX = {"loss.nacl": "mixnca", "loss.negatives": "g2", "loss.num_positives": 2, "loss.lam": 0.5}


def _cifar(preset: str = "simclr", **more: object) -> RunConfig:
    return resolve({"dataset": "cifar100", **more}, preset=preset)


def test_all_values_are_there() -> None:
    assert len(published._document()["values"]) == 800
    assert len(published.values()) == 440


@pytest.mark.parametrize(
    ("config", "dataset", "metric", "value"),
    [
        (_cifar(), "cifar100", "clean", (53.69, 0.25)),
        (_cifar(), "cifar10", "fgsm", (43.50, 0.41)),
        (_cifar("debiased_hardneg"), "cifar100", "pgd", (28.80, 0.48)),
        (_cifar("intcl"), "cifar100", "fgsm", (40.05, 0.67)),
        (_cifar("intnacl"), "cifar100", "clean", (59.43, 0.23)),
        (_cifar(**MIX), "cifar10", "pgd", (46.67, 0.40)),
        (_cifar(**MIX, **{"train.epochs": 2000}), "cifar100", "clean", (67.85, None)),
        (_cifar(objective="supervised", **{"train.epochs": 1000}), "cifar100", "clean", (65.16, 0.32)),
        (TINY, "tinyimagenet", "clean", (42.24, 0.14)),
    ],
)  # fmt: skip
def test_printed_values(config: RunConfig, dataset: str, metric: str, value: tuple[float, float]) -> None:
    assert published.find(config, dataset, metric) == value


@pytest.mark.parametrize(
    "config",
    [
        _cifar("hardneg"), _cifar("debiased"), _cifar("adv"),  # drawn, never printed
        _cifar(**{"train.epochs": 99}), _cifar(**{"loss.num_positives": 6}),
        _cifar("intcl", **{"loss.alpha": 0.5}),
        resolve({"dataset": "cifar10"}),
    ],
)  # fmt: skip
def test_other_runs_have_none(config: RunConfig) -> None:
    assert published.find(config, config.dataset, "clean") is None


def test_only_at_the_published_radius() -> None:
    assert published.find(_cifar(), "cifar100", "fgsm", 0.004) is None
    assert published.find(_cifar("debiased_hardneg"), "cifar100", "pgd", 0.004) is None
    assert published.find(_cifar(**{"evaluation.eps": (0.004,)}), "cifar100", "fgsm") is None
    assert published.find(_cifar(**{"evaluation.eps": (0.004,)}), "cifar100", "clean") is not None


def test_training_times() -> None:
    assert published.training_times() == "SimCLR 211 min for 200 epochs, NCA(g0, 2) 158 min for 100 epochs"
