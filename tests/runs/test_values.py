"""Text and values of files become what a setting is; what cannot is named."""

import pytest

from intnacl.errors import InputError
from intnacl.runs.resolve import resolve


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("train.epochs", "12", 12),
        ("train.lr", "1e-4", 1e-4),
        ("evaluation.eps", "0.002,8/255", (0.002, 8 / 255)),
        ("adversary.eps", "4/255", 4 / 255),
        ("train.tensorboard", "true", True),
        ("train.compile", "None", None),
        ("train.compile", "false", False),
        ("train.clip", "none", None),
        ("train.clip", "1.5", 1.5),
        ("encoder.mean", "0.1,0.2, 0.3", (0.1, 0.2, 0.3)),
        ("encoder.mean", [0, 1, 0], (0.0, 1.0, 0.0)),
        ("evaluation.transfer", "cifar10,cifar100", ("cifar10", "cifar100")),
        ("evaluation.transfer", "", ()),
        ("encoder.name", "resnet34", "resnet34"),
        ("train.epochs", 5.0, 5),
        ("root", "/data", "/data"),
    ],
)
def test_text_is_read_as_the_settings_type(key: str, text: object, value: object) -> None:
    part, _, name = key.rpartition(".")
    config = resolve({key: text})
    assert getattr(getattr(config, part) if part else config, name) == value


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("train.epochs", "many", r"train\.epochs='many' is not a whole number"),
        ("train.epochs", 1.5, "is not a whole number"),
        ("train.epochs", float("inf"), "is not a whole number"),
        ("train.epochs", True, "is not a whole number"),
        ("train.lr", "fast", "is not a number"),
        ("adversary.eps", "8/0", "is not a number"),
        ("adversary.eps", "8/2/255", "is not a number"),
        ("train.lr", True, "is not a number"),
        ("train.tensorboard", "yes", "is not true or false"),
        ("encoder.name", 18, "is not a text"),
        ("dataset", ["digits"], "is not a text"),
        ("encoder.mean", 0.5, "is not a list of 3, each a number"),
        ("encoder.mean", "0.5,0.5", "is not a list of 3, each a number"),
        ("augment.crop_scale", "[0.2,1.0]", "with commas between and no brackets"),
        ("evaluation.eps", "a", "is not a list, each a number"),
    ],
)
def test_ill_typed_values_are_named(key: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve({key: value})
