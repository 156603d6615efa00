"""A run's configuration: the owners' dataclasses side by side, and the ways to change them.

Layers, each over the one before: the recipe of the data set, a TOML file (its preset, then its other
settings), the preset of the command line, flags. Unknown keys and ill-typed values are errors that name the
nearest key. What is written to `config.json` is what runs.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from intnacl.attacks.training_view import AdversaryConfig
from intnacl.data.augmentations import RECIPES as AUGMENTATIONS
from intnacl.data.augmentations import AugmentConfig
from intnacl.data.datasets import check_name
from intnacl.data.draws import check_seed
from intnacl.errors import InputError, Settings, check_choice, one_of, setting
from intnacl.evaluation.probe import ProbeConfig
from intnacl.losses.integrated import PRESETS, LossConfig
from intnacl.models.encoders import EncoderConfig
from intnacl.runs.values import typed
from intnacl.training.optimizers import OptimizerConfig
from intnacl.training.settings import TrainConfig


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is measured after training."""

    transfer: tuple[str, ...] = ()
    """More data sets to probe and attack."""
    eps: tuple[float, ...] = (0.002,)
    """Attack radii in pixels of [0, 1]; the first is the one of `accuracy` in result.json."""
    attacks: tuple[str, ...] = ("fgsm", "pgd")
    """fgsm, pgd (the paper's), pgd_tuned, autoattack."""
    fgsm_eps: tuple[float, ...] = ()
    """More radii for FGSM alone, which is cheap."""
    images: int | None = None
    """How many test images are attacked; None: all."""

    @property
    def rounds(self) -> tuple[tuple[float, tuple[str, ...]], ...]:
        """Every radius with the attacks there."""
        curve = [
            (eps, ("fgsm",)) for eps in self.fgsm_eps if eps not in self.eps or "fgsm" not in self.attacks
        ]
        return (*((eps, self.attacks) for eps in self.eps if self.attacks), *curve)


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """Everything a run depends on."""

    recipe: str = setting("custom", free=True)
    """The name of the recipe as long as views, encoder and optimiser are its own, else "custom"."""
    objective: str = setting("contrastive", one_of("contrastive", "supervised"))
    """contrastive or supervised."""
    dataset: str = setting("digits", flag=True)
    """A data set that `intnacl datasets` lists."""
    root: str | None = setting(None, flag=True, free=True)
    """Folder of the data sets; None: $INTNACL_DATA, else ~/.cache/intnacl."""
    size: int | None = None
    """Side length to which images of `folder:` and `parquet:` are resized; None: 32."""
    seed: int = setting(0, check_seed, flag=True)
    """Random seed for weights, batches and views."""
    loss: LossConfig = field(default_factory=LossConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    adversary: AdversaryConfig = field(default_factory=AdversaryConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


def _dotted(owner: type, prefix: str = "") -> Iterator[tuple[str, Field[Any]]]:
    for one in fields(owner):
        if isinstance(one.default_factory, type):
            yield from _dotted(one.default_factory, f"{one.name}.")
        else:
            yield f"{prefix}{one.name}", one


SETTINGS: Mapping[str, Field[Any]] = dict(_dotted(RunConfig))  # by dotted name; docs/settings.md lists them
FREE = frozenset(key for key, one in SETTINGS.items() if one.metadata.get("free"))
FLAGS = {key: one.name for key, one in SETTINGS.items() if one.metadata.get("flag")}  # their names as flags

# How the recipes read what the paper leaves open, so that its figures come out (docs/reproduction.md).
# Weight: ŵ itself is about 5, so that mixed views hardly count, and IntNaCl ends 2.3 points below the paper.
WEIGHT = {"loss.weight": "relative"}
# Head: the paper cites SimCLR's and HCL's, which have batch norm; without it MIXNCA ends 1.3 points below the
# paper clean and 2.5 under FGSM. Linear layer: after 1000 epochs, raw features at 3e-4 end up to 2 points
# below clean and 7 under FGSM.
READING = {**WEIGHT, "encoder.head": "hcl", "probe.normalize": True, "probe.lr": 1e-3}
# Overrides of the defaults.
RECIPES: dict[str, dict[str, Any]] = {
    "paper": READING,
    "tinyimagenet": {**READING, "train.batch_size": 128, "probe.epochs": 200},
    "digits": {
        **WEIGHT,
        # 8×8 grey digits on a CPU: no mirror images, gentler crops, a small net, a larger rate.
        "augment.crop_scale": (0.4, 1.0),
        "augment.flip_p": 0.0,
        "augment.strength": 0.5,
        "augment.grayscale_p": 0.0,
        "encoder.name": "small",
        "train.epochs": 60,
        "train.lr": 1e-3,
        "probe.solver": "lbfgs",
        # About 1/N, scikit-learn's C = 1. Without it the layer separates the training digits for good, its
        # softmax saturates in float32, and input gradients vanish exactly: attacks would overrate the model.
        "probe.l2": 1e-3,
        "evaluation.eps": (0.02, 0.05, 0.1),
        # The paper's ten steps of 0.01 are made for eps 0.002: at these radii they are too few.
        "evaluation.attacks": ("fgsm", "pgd", "pgd_tuned"),
    },
}
RECIPE_OF = {"digits": "digits", "tinyimagenet": "tinyimagenet"}  # "paper" for all other data sets
DECIDED = {f"loss.{name}" for row in PRESETS.values() for name in row}  # settings that presets are about


def resolve(
    overrides: Mapping[str, Any] | None = None,
    *,
    file: Path | None = None,
    preset: str | None = None,
    recipe: str | None = None,
    device: torch.device | None = None,
) -> RunConfig:
    """The configuration of recipe, file, preset and overrides (dotted keys, strings or values)."""
    given = dict(overrides or {})
    from_file = dict(flatten(read_toml(file, "config file"))) if file else {}
    if "tables" in from_file:
        raise InputError(f"config file {file} is a grid of tables: give it to `intnacl reproduce --config`.")
    file_preset, file_recipe = (from_file.pop(name, None) for name in ("preset", "recipe"))
    given_recipe = given.pop("recipe", None)
    if preset is not None:  # over the file: what presets decide, this one does
        from_file = {key: value for key, value in from_file.items() if key not in DECIDED}
    preset = preset or file_preset or "simclr"
    dataset = given.get("dataset", from_file.get("dataset", RunConfig.dataset))
    recipe = recipe or given_recipe or file_recipe or RECIPE_OF.get(str(dataset), "paper")
    check_choice("recipe", recipe, RECIPES)
    check_choice("preset", preset, PRESETS)
    loss = {f"loss.{k}": v for k, v in PRESETS[preset].items()}
    base = _override(RunConfig(recipe=recipe), RECIPES[recipe])
    config = _override(_override(base, loss | from_file), given)
    config = config if _same_recipe(base, config) else replace(config, recipe="custom")
    for name in (config.dataset, *config.evaluation.transfer):
        check_name(name)
    return replace(config, train=config.train.on(device)) if device else config


def _same_recipe(base: RunConfig, config: RunConfig) -> bool:
    parts = all(getattr(config, part) == getattr(base, part) for part in ("augment", "encoder", "adversary"))
    names = [f.name for f in fields(OptimizerConfig)]
    return parts and all(getattr(config.train, name) == getattr(base.train, name) for name in names)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of a TOML file; `what` it is called in errors."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # Windows marks the text's beginning
    except OSError as error:
        raise InputError(f"{what} {path}: {error.strerror}.") from error
    except ValueError as error:  # bad syntax, or no text at all
        raise InputError(f"{what} {path} is no TOML: {error}.") from error


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Plain values, as in `config.json`."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return plain


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """The configuration that `to_dict` wrote."""
    return _override(RunConfig(), dict(flatten(values)))


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """Settings that make two runs different, as lines `key: old -> new`."""
    a, b = dict(flatten(to_dict(old))), dict(flatten(to_dict(new)))
    keys = sorted((a.keys() | b.keys()) - FREE)
    return [f"{key}: {a.get(key)!r} -> {b.get(key)!r}" for key in keys if a.get(key) != b.get(key)]


def _check_setting(key: str) -> None:
    """Raise unless `key` is a setting; suggest all settings that a key without its part may mean, as lr."""
    if key in SETTINGS:
        return
    last = {name: name.rpartition(".")[2] for name in SETTINGS}
    near = get_close_matches(key, last.values(), n=1)
    meant = [repr(name) for name in last if near and last[name] == near[0]]
    if meant and "." not in key:
        raise InputError(f"setting={key!r} is unknown; did you mean {' or '.join(meant)}?")
    check_choice("setting", key, SETTINGS)


def _override(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """The configuration with dotted keys changed; each part is built, and so checked, once."""
    parts: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        if key == "augment" and isinstance(value, str):  # a named augmentation
            check_choice("augment", value, AUGMENTATIONS)
            config = replace(config, augment=AUGMENTATIONS[value])
            continue
        _check_setting(key)
        part, _, name = key.rpartition(".")
        parts.setdefault(part, {})[name] = typed(value, SETTINGS[key].type, key)
    top = parts.pop("", {})
    built = {part: replace(getattr(config, part), **values) for part, values in parts.items()}
    return replace(config, **built, **top)


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values as dotted keys."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
