"""A run's configuration: the settings of all parts, how they are written, read and changed.

`config.json` holds all of them, and its version. A setting has a dotted name, such as `train.lr`, under which
the command line and files give it; unknown names and ill-typed values are errors that name the nearest
setting.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from types import NoneType
from typing import Any, ClassVar, get_args, get_origin

from intnacl.attacks.training_view import AdversaryConfig
from intnacl.data.augmentations import AUGMENTATIONS, AugmentConfig
from intnacl.data.datasets import absolute_name, is_at_path
from intnacl.data.draws import check_seed
from intnacl.errors import InputError, Settings, check_choice, must, one_of, setting
from intnacl.evaluation.adversarial_probe import AlfConfig
from intnacl.evaluation.knn import WEIGHTS
from intnacl.evaluation.probe import ProbeConfig
from intnacl.losses.config import PRESETS, LossConfig
from intnacl.models.encoders import EncoderConfig
from intnacl.training.distill import DistillConfig
from intnacl.training.finetune import FinetuneConfig
from intnacl.training.settings import TrainConfig

VERSION = 2  # of config.json: raised when a recipe's defaults change; files older than version 2 name none


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Settings):
    """Measurements after training."""

    prefix: ClassVar[str] = "evaluation."

    transfer: tuple[str, ...] = ()
    """More data sets to probe and attack."""
    eps: tuple[float, ...] = (0.002,)
    """Attack radii for pixels in [0, 1]; `accuracy` in result.json is at the first."""
    attacks: tuple[str, ...] = ("fgsm", "pgd")
    """fgsm, pgd (the paper's), pgd_tuned, autoattack. `accuracy` in result.json reports FGSM and one PGD: the
    paper's if it is listed, else the tuned one."""
    fgsm_eps: tuple[float, ...] = ()
    """More radii for FGSM alone, which is cheap."""
    pgd_tuned_eps: tuple[float, ...] = ()
    """More radii for tuned PGD alone, for example a curve beside AutoAttack at the first radius."""
    images: int | None = None
    """Attack only this many test images; None: all."""
    knn_k: int | None = setting(None, must(lambda v: v >= 1, "1 or more"))
    """Neighbours of the kNN accuracy; None: 200, or the images per class if fewer."""
    knn_weights: str = setting("exp", one_of(*WEIGHTS))
    """Votes of the neighbours: "exp" weights them by exp(cosine / 0.1), "uniform" equally."""

    @property
    def pgd(self) -> str:
        """The attack that `accuracy` in result.json reports as PGD."""
        tuned = "pgd_tuned" in self.attacks and "pgd" not in self.attacks
        return "pgd_tuned" if tuned else "pgd"

    @property
    def rounds(self) -> tuple[tuple[float, tuple[str, ...]], ...]:
        """Every radius with its attacks."""
        radii = dict.fromkeys(self.eps)
        curves = [
            (eps, (name,))
            for name, more in (("fgsm", self.fgsm_eps), ("pgd_tuned", self.pgd_tuned_eps))
            for eps in dict.fromkeys(more)
            if eps not in radii or name not in self.attacks
        ]
        return (*((eps, self.attacks) for eps in radii if self.attacks), *curves)


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """Everything a run depends on."""

    recipe: str = setting("custom", free=True)
    """Name of the recipe if views, encoder and optimiser are those of the recipe, else "custom"."""
    objective: str = setting("contrastive", one_of("contrastive", "supervised", "distill", "finetune"))
    """contrastive, supervised, distill or finetune: see `distill` and `finetune`."""
    dataset: str = setting("digits", flag=True)
    """A data set that `intnacl datasets` lists."""
    root: str | None = setting(None, flag=True, free=True)
    """Folder of the data sets; None: $INTNACL_DATA, else ~/.cache/intnacl."""
    size: int | None = setting(None, flag=True)
    """Side length to which images of `folder:`, `parquet:` and `webdataset:` are resized; None: 32."""
    stream: str = setting("auto", one_of("auto", "always", "never"), flag=True)
    """always: decode images during training, and crop from their original pixels; never: decode all images to
    one size before training, and keep them on the device; auto: never if they fit into half of the device's
    free memory, else always."""
    max_broken: float = setting(0.01, must(lambda v: 0 <= v <= 1, "a share in [0, 1]"), free=True)
    """Largest share of damaged images when streaming: so many are replaced by others, more end the run."""
    holdout: int = setting(0, must(lambda v: v >= 0, "0 or more"), flag=True)
    """Training images of each data set to hold out, the same share of every class. Nothing is trained on
    them, and everything is measured on them instead of the test images. 0: measure on the test images."""
    seed: int = setting(0, check_seed, flag=True)
    """Random seed for weights, batches and views."""
    loss: LossConfig = field(default_factory=LossConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    adversary: AdversaryConfig = field(default_factory=AdversaryConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    alf: AlfConfig = field(default_factory=AlfConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


def _dotted(owner: type, prefix: str = "") -> Iterator[tuple[str, Field[Any]]]:
    for one in fields(owner):
        if isinstance(one.default_factory, type):
            yield from _dotted(one.default_factory, f"{one.name}.")
        else:
            yield f"{prefix}{one.name}", one


SETTINGS: Mapping[str, Field[Any]] = dict(_dotted(RunConfig))  # by dotted name; docs/settings.md lists them
FREE = frozenset(key for key, one in SETTINGS.items() if one.metadata.get("free"))
FLAGS = {key: one.name for key, one in SETTINGS.items() if one.metadata.get("flag")}  # setting -> flag


def loss_name(config: RunConfig) -> str:
    """Return the name of a contrastive run's preset, else its numerator and negatives; or the objective."""
    if config.objective == "finetune" and config.finetune.clusters:
        return f"finetune-{config.finetune.clusters}clusters"
    if config.objective != "contrastive":
        return config.objective
    # "loss" and "relative" are both the paper's ŵ.
    loss = config.loss if config.loss.weight == "one" else replace(config.loss, weight="loss")
    for name, row in PRESETS.items():
        if replace(LossConfig(**row), temperature=loss.temperature) == loss:
            return name
    return f"{config.loss.nacl}-{config.loss.negatives}"


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Return plain values, as in `config.json`."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return plain


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """Return the configuration that `to_dict` wrote, in this or an earlier version.

    Before `train.decay_vectors` existed, weight decay acted on vectors too.
    """
    written = dict(flatten(values))
    decayed = written.get("train.weight_decay") and written.get("train.optimizer") != "lars"
    return override(RunConfig(), {"train.decay_vectors": True} | written if decayed else written)


def changed_settings(old: RunConfig, new: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two runs differ: dotted name -> both values."""
    a, b = (
        flat
        | {"dataset": absolute_name(flat["dataset"])}
        | {"evaluation.transfer": [absolute_name(name) for name in flat["evaluation.transfer"]]}
        for flat in (dict(flatten(to_dict(config))) for config in (old, new))
    )  # earlier versions stored relative paths
    ignored = set(FREE)
    if "auto" in (a["stream"], b["stream"]) or not is_at_path(a["dataset"]):
        ignored.add("stream")  # not decided yet, or without effect
    return {key: (a[key], b[key]) for key in sorted(a.keys() - ignored) if a[key] != b[key]}


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """List the settings in which two runs differ, as lines `key: old -> new`."""
    return [f"{key}: {a!r} -> {b!r}" for key, (a, b) in changed_settings(old, new).items()]


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested values with dotted keys."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def override(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """Return the configuration with dotted keys changed; each part is built once, which checks it."""
    parts: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        if value == {} and any(name.startswith(f"{key}.") for name in SETTINGS):  # an empty part
            continue
        if key == "augment" and isinstance(value, str):  # a named augmentation
            check_choice("augment", value, AUGMENTATIONS)
            config = replace(config, augment=AUGMENTATIONS[value])
            continue
        if key == "train.tensorboard":  # from version 0.1.0, which had one tracker
            if typed(value, bool, key):
                parts.setdefault("train", {}).setdefault("trackers", ("tensorboard",))
            continue
        _check_setting(key)
        part, _, name = key.rpartition(".")
        parts.setdefault(part, {})[name] = typed(value, SETTINGS[key].type, key)
    top = parts.pop("", {})
    built = {part: replace(getattr(config, part), **values) for part, values in parts.items()}
    return replace(config, **built, **top)


def _check_setting(key: str) -> None:
    """Raise unless `key` is a setting; for a key without its part, such as lr, suggest all candidates."""
    if key in SETTINGS:
        return
    last = {name: name.rpartition(".")[2] for name in SETTINGS}
    near = get_close_matches(key, last.values(), n=1)
    meant = [repr(name) for name in last if near and last[name] == near[0]]
    if meant and "." not in key:
        raise InputError(f"setting={key!r} is unknown; did you mean {' or '.join(meant)}?")
    check_choice("setting", key, SETTINGS)


def typed(value: Any, wanted: Any, key: str) -> Any:
    """Convert a value of a file, or a text of the command line, to the field's type `wanted`."""
    if NoneType in get_args(wanted):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        (wanted,) = (kind for kind in get_args(wanted) if kind is not NoneType)
    several = get_origin(wanted) is tuple
    kinds = get_args(wanted) if several else (wanted,)
    any_number = kinds[-1] is Ellipsis
    try:
        if not several:
            return _scalar(value, wanted)
        is_text = isinstance(value, str)
        items = [item.strip() for item in value.split(",") if item.strip()] if is_text else value
        if not any_number and len(items) != len(kinds):
            raise ValueError
        return tuple(_scalar(item, kinds[0]) for item in items)
    except (ValueError, TypeError, OverflowError):
        nouns = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        noun = nouns.get(kinds[0], "true, false or a text")
        if several:
            count = "a list" if any_number else f"a list of {len(kinds)}"
            form = "with commas between and no brackets" if isinstance(value, str) else "in brackets"
            noun = f"{count}, each {noun}, {form}"
        raise InputError(f"{key}={value!r} is not {noun}.") from None


def _scalar(value: Any, kind: Any) -> Any:
    """Convert one value to bool, int, float, str, or bool | str; raise ValueError or TypeError otherwise."""
    if kind == bool | str:
        kind = str if isinstance(value, str) and value.lower() not in ("true", "false") else bool
    if kind is bool:
        truths = {"true": True, "1": True, "false": False, "0": False}
        if str(value).lower() not in truths:
            raise ValueError
        return truths[str(value).lower()]
    if isinstance(value, bool) or (kind is str and not isinstance(value, str)):
        raise TypeError
    if kind is int and isinstance(value, float) and value != int(value):
        raise TypeError
    return number(value) if kind is float and isinstance(value, str) else kind(value)


def number(text: str) -> float:
    """Read a number such as 0.002, 1e-3, or the fraction 8/255, in which radii of attacks are often given."""
    numerator, slash, denominator = text.partition("/")
    try:
        return float(numerator) / float(denominator) if slash else float(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{text!r} is not a number such as 0.002, 1e-3 or 8/255.") from None


def unused(config: RunConfig) -> dict[str, str]:
    """Return the settings that a run does not use: name -> the settings that would use it."""
    loss_settings = [key for key in SETTINGS if key.startswith("loss.")]
    adversary = [key for key in SETTINGS if key.startswith("adversary.")]
    elsewhere = {
        key: f"objective={part}"
        for part in ("distill", "finetune")
        if config.objective != part
        for key in SETTINGS
        if key.startswith(f"{part}.")
    }
    if config.objective == "finetune" and not config.finetune.clusters:
        names = ("clustered", "head_epochs", "head_lr")
        elsewhere |= dict.fromkeys([f"finetune.{name}" for name in names], "finetune.clusters above 1")
    if config.objective != "contrastive":
        contrastive = dict.fromkeys((*loss_settings, *adversary, "augment.mix_of"), "objective=contrastive")
        return elsewhere | contrastive
    loss, m = config.loss, "loss.num_positives above 1"
    several, robust, estimators = loss.num_positives > 1, loss.alpha > 0, {loss.negatives}
    if robust:
        estimators |= {loss.robust_negatives or loss.negatives, config.adversary.negatives}
    mixed = ("loss.lam", "loss.mix_negatives", "augment.mix_of")
    by_weight = "loss.weight=loss and loss.alpha above 0"
    rules = (
        (several, ("loss.nacl",), m),
        (several and loss.nacl == "nca", ("loss.denominator",), f"loss.nacl=nca and {m}"),
        (several and loss.nacl == "mixnca", mixed, f"loss.nacl=mixnca and {m}"),
        (robust, ("loss.robust_negatives", "loss.weight", *adversary), "loss.alpha above 0"),
        (robust and loss.weight == "loss", ("loss.detach_weight",), by_weight),
        (estimators != {"g0"}, ("loss.tau_plus",), "loss.negatives=g1 or g2"),
        ("g2" in estimators, ("loss.beta",), "loss.negatives=g2"),
    )
    return elsewhere | {name: need for used, names, need in rules if not used for name in names}
