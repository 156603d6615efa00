"""What is the paper's setting, and what is not."""

import pytest

from intnacl.paper.setting import choices, departures
from intnacl.runs.config import resolve

CIFAR = {"dataset": "cifar100"}


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


def test_twenty_classes_of_tinyimagenet_are_not_tinyimagenet() -> None:
    config = resolve({"dataset": "tinyimagenet"})
    part = {"protocol": {"images": {"tinyimagenet": {"train": 10_000, "test": 1000}}}}
    whole = {"protocol": {"images": {"tinyimagenet": {"train": 100_000, "test": 10_000}}}}
    fewer_tests = {"protocol": {"images": {"tinyimagenet": {"train": 100_000, "test": 1000}}}}
    assert departures(config, fewer_tests) != []
    assert departures(config, part) == ["tinyimagenet has 10,000 + 1,000 images, not 100,000 + 10,000"]
    assert departures(config, whole) == []
