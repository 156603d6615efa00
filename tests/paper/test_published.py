"""Published values are found by the right configurations, and stand beside runs of the paper's setting."""

import pytest

from intnacl.paper import published
from intnacl.paper.published import choices, departures
from intnacl.runs.config import RunConfig
from intnacl.runs.resolve import resolve

CIFAR = {"dataset": "cifar100"}
TINY = resolve({"dataset": "tinyimagenet", "loss.weight": "one"}, preset="intcl")
MIX = {"loss.nacl": "mixnca", "loss.negatives": "g2", "loss.num_positives": 2, "loss.lam": 0.5}


def _cifar(preset: str = "simclr", **more: object) -> RunConfig:
    return resolve({"dataset": "cifar100", **more}, preset=preset)


def test_all_values_are_there() -> None:
    assert len(published.document()["values"]) == 800
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


@pytest.mark.parametrize("preset", ["simclr", "hardneg", "adv", "intnacl"])
def test_the_recipe_is_the_papers(preset: str) -> None:
    assert departures(resolve(CIFAR, preset=preset)) == []
    assert departures(resolve({"dataset": "tinyimagenet"}, preset=preset)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.lr", 1e-3), ("train.batch_size", 128), ("probe.epochs", 100), ("encoder.name", "resnet50"),
        ("augment.blur_p", 0.5), ("evaluation.images", 1000), ("train.schedule", "cosine"),
        ("loss.alpha", 0.5), ("adversary.negatives", "g2"), ("train.epochs", 30),
    ],
)  # fmt: skip
def test_what_the_paper_states_must_hold(key: str, value: object) -> None:
    (reason,) = departures(resolve({**CIFAR, key: value}))
    assert reason.startswith(f"{key} = {value}")


@pytest.mark.parametrize(
    ("settings", "epochs"),
    [
        (CIFAR, (100, 200, *range(400, 2001, 200))), ({"dataset": "tinyimagenet"}, (100,)),
        ({**CIFAR, "objective": "supervised"}, (1000,)),
    ],
)  # fmt: skip
def test_lengths_of_training_are_the_papers(settings: dict[str, str], epochs: tuple[int, ...]) -> None:
    tried = (1, 30, 300, *range(100, 2101, 100))
    kept = {n for n in tried if not departures(resolve({**settings, "train.epochs": n}))}
    assert kept == set(epochs)


def test_other_data_sets_are_not_the_papers() -> None:
    assert departures(resolve({"dataset": "digits"})) == ["data set digits"]


def test_what_the_paper_leaves_open_is_a_named_choice() -> None:
    config = resolve({**CIFAR, "augment.strength": 0.5, "encoder.head": "paper"})
    assert departures(config) == []
    assert choices(config) == ["augment.strength = 0.5", "encoder.head = paper"]
    assert choices(resolve(CIFAR, preset="intnacl")) == []
    assert choices(resolve({**CIFAR, "loss.weight": "loss"}, preset="intcl")) == ["loss.weight = loss"]
    assert choices(resolve({**CIFAR, "loss.weight": "loss"})) == []  # SimCLR has no robust term
    assert choices(resolve(CIFAR, preset="adv")) == []  # w = 1 is its row of the table
    assert choices(resolve({**CIFAR, "objective": "supervised"})) == []


def test_the_supervised_augmentation_is_open() -> None:
    supervised = {**CIFAR, "objective": "supervised", "train.epochs": 1000, "augment": "crop_flip"}
    assert departures(resolve(supervised)) == []
    assert departures(resolve({**CIFAR, "augment": "crop_flip"})) != []


@pytest.mark.parametrize(
    ("train", "test", "found"),
    [(100_000, 10_000, None), (10_000, 1000, "10,000 + 1,000"), (100_000, 1000, "100,000 + 1,000")],
)
def test_a_part_of_a_data_set_is_another_one(train: int, test: int, found: str | None) -> None:
    result = {"protocol": {"images": {"tinyimagenet": {"train": train, "test": test}, "folder:x": {
        "train": 1, "test": 1}}}}  # fmt: skip
    expected = [f"tinyimagenet has {found} images, not 100,000 + 10,000"] if found else []
    assert departures(resolve({"dataset": "tinyimagenet"}), result) == expected
