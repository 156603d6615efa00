"""Recipes, and the configuration that results from a data set, a file and flags.

The layers, each of which overrides the ones before: the recipe of the data set, a TOML file (its preset, then
its other settings), the preset of the command line, flags. `config.json` holds exactly the settings that run.
"""

import warnings
from collections.abc import Collection, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch

from intnacl.data.datasets import absolute_name, absolute_root, check_name, is_at_path
from intnacl.errors import InputError, InputWarning, check_choice
from intnacl.files import parse_toml, read_file
from intnacl.losses.config import PRESETS
from intnacl.models.encoders import own_normalisation
from intnacl.models.shipped import located
from intnacl.runs.config import RunConfig, flatten, override, unused
from intnacl.runs.finetune import shared_with
from intnacl.training.optimizers import RATE_OF_256, OptimizerConfig

# Choices of the recipes where the paper is silent, made so that its figures are reached
# (docs/reproduction.md). Three choices depart from its formulas: this weight, and the defaults of
# augment.mix_of and loss.mix_negatives. Weight: ŵ itself is about 5, so that mixed views hardly count, and
# IntNaCl ends 2.3 points below the paper.
WEIGHT = {"loss.weight": "relative"}
# Head: the paper cites the heads of SimCLR and HCL, which have batch norm; without it MIXNCA ends below the
# paper by 1.3 points clean and 2.5 under FGSM. Probe: with unnormalised features and a rate of 3e-4, accuracy
# after 1000 epochs is lower by up to 2 points clean and 7 under FGSM.
READING = {**WEIGHT, "encoder.head": "hcl", "probe.normalize": True, "probe.lr": 1e-3}
# TinyImageNet: CLAE, on whose code the paper builds, normalises by ImageNet's statistics. Its adversarial
# step of 0.03 is in normalised units: 0.0068 in pixels (for CIFAR, whose pixels CLAE divides by 0.5, it is
# our default of 0.015).
TINYIMAGENET = {
    "encoder.mean": (0.485, 0.456, 0.406),
    "encoder.std": (0.229, 0.224, 0.225),
    "adversary.eps": 0.0068,
    "train.batch_size": 128,
    "probe.epochs": 200,
}
# SimCLR on CIFAR-10 as github.com/dkobak/simclr-cifar10 (44b2500) trains it, which reports for ResNet-18:
# 83.2 % kNN after 100 epochs at a rate of 0.06·B/256, 90.3 % after 500 at 0.03·B/256. It adopts SGD, the
# cosine schedule and weight decay on every parameter from SimSiam (Chen & He 2021, Appendix D), and greyscale
# with probability 0.1 from W-MSE (Ermolov et al. 2021). Its network is torchvision's, with He's
# initialisation.
KOBAK = {
    "augment.crop_scale": (0.2, 1.0),
    "augment.strength": 0.5,
    "augment.grayscale_p": 0.1,
    "encoder.head": "1024-128",
    "encoder.init": "he",
    "train.batch_size": 512,
    "train.optimizer": "sgd",
    "train.schedule": "cosine",
    "train.weight_decay": 5e-4,
    "train.decay_vectors": True,
}
# Overrides of the defaults.
RECIPES: dict[str, dict[str, Any]] = {
    "paper": READING,
    "tinyimagenet": {**READING, **TINYIMAGENET},
    # For a strong encoder on CIFAR instead of a replication; benchmarks/strong compares variants of it.
    "strong": {**READING, **KOBAK, "train.epochs": 100, "train.lr": 0.12},
    # CIFAR-10 to 90 % by 10 nearest neighbours with equal votes, the target of that repository's leaderboard.
    "knn90": {
        **READING,
        **KOBAK,
        "train.epochs": 500,
        "train.lr": 0.06,
        "train.monitor_epochs": 50,
        "evaluation.knn_k": 10,
        "evaluation.knn_weights": "uniform",
        "evaluation.attacks": (),
        "probe.solver": "lbfgs",  # takes seconds; Adam's layer would only matter under attack
    },
    # Trained as on the paper's data, attacked at the usual radii: at 0.002 every attack is one step to a
    # corner.
    "own": {
        **READING,
        "evaluation.eps": (8 / 255,),
        "evaluation.attacks": ("fgsm", "pgd_tuned"),
        "evaluation.fgsm_eps": tuple(n / 255 for n in (1, 2, 4, 8, 16)),
    },
    # SimCLR on ImageNet (Chen et al. 2020): batches of 4096, LARS at a rate of 0.3 per 256 images, decay,
    # warm-up and cosine, batch norm over all ranks ("Default setting"), temperature 0.1 (section 5.1), a blur
    # kernel of a tenth of the side (appendix A).
    "imagenet": {
        "size": 224,
        "encoder.name": "resnet50",
        "encoder.stem": "imagenet",
        "encoder.head": "hcl",
        "encoder.norm": "joint",
        "encoder.sync": True,
        "encoder.mean": (0.485, 0.456, 0.406),
        "encoder.std": (0.229, 0.224, 0.225),
        "loss.temperature": 0.1,
        "augment.blur_p": 0.5,
        "augment.blur_kernel": 23,
        "train.batch_size": 4096,
        "train.optimizer": "lars",
        "train.weight_decay": 1e-6,
        "train.schedule": "cosine",
        "train.warmup_epochs": 10,
        "train.save_minutes": 15,
        "probe.epochs": 90,
        "probe.batch_size": 4096,
        "probe.normalize": True,
        "probe.lr": 1e-3,
        "evaluation.eps": (4 / 255,),
        "evaluation.attacks": ("fgsm", "pgd_tuned"),
        "evaluation.images": 5000,
    },
    "digits": {
        **WEIGHT,
        # 8×8 grey digits on a CPU: no flips, gentler crops, a small network, a larger rate.
        "augment.crop_scale": (0.4, 1.0),
        "augment.flip_p": 0.0,
        "augment.strength": 0.5,
        "augment.grayscale_p": 0.0,
        "encoder.name": "small",
        "train.epochs": 60,
        "train.lr": 1e-3,
        "probe.solver": "lbfgs",
        # About 1/N, scikit-learn's C = 1. Without it the layer separates the training digits perfectly, its
        # softmax saturates in float32, and input gradients are exactly zero: attacks would overrate the
        # model.
        "probe.l2": 1e-3,
        "evaluation.eps": (0.02, 0.05, 0.1),
        # The paper's ten steps of 0.01 suit eps 0.002: at these radii they are too few.
        "evaluation.attacks": ("fgsm", "pgd", "pgd_tuned"),
    },
}
# Overrides of the data set's recipe for distillation as in DeACL (its paper and its code; docs/robust.md).
ROBUST: dict[str, dict[str, Any]] = {
    "robust": {
        "objective": "distill",
        "augment.crop_scale": None,
        "augment.crop_padding": 4,
        "augment.jitter_p": 0.0,
        "augment.grayscale_p": 0.0,
        "encoder.norm": "joint",
        "train.optimizer": "sgd",
        "train.lr": 0.5,
        "train.weight_decay": 5e-4,
        "train.decay_vectors": True,
        "train.schedule": "cosine",
        "train.warmup_epochs": 10,
        "evaluation.eps": (8 / 255,),
        "evaluation.attacks": ("fgsm", "pgd_tuned", "autoattack"),
        "evaluation.fgsm_eps": (),
        "evaluation.pgd_tuned_eps": tuple(n / 255 for n in (2, 4, 12, 16)),
    },
    "robust_digits": {
        "objective": "distill",
        "augment.crop_scale": None,
        "augment.crop_padding": 1,
        "augment.jitter_p": 0.0,
        "encoder.norm": "joint",
        # The largest radius of the recipe `digits`, with as many steps as DeACL takes at 8/255.
        "distill.eps": 0.1,
        "distill.step_size": 0.025,
        "train.epochs": 30,
    },
}
# Overrides for the last stage of DynACL++ (its LPAFT.py), on top of the settings shared with the encoder's
# run.
ROBUST_CLUSTERS: dict[str, dict[str, Any]] = {
    "robust_clusters": {
        "objective": "finetune",
        "augment.crop_scale": None,
        "augment.crop_padding": 4,
        "augment.jitter_p": 0.0,
        "augment.grayscale_p": 0.0,
        "train.optimizer": "sgd",
        "train.lr": 0.1,
        "train.weight_decay": 1e-4,
        "train.decay_vectors": True,
        "train.schedule": "steps",
        "train.epochs": 25,
        "train.batch_size": 512,
    },
    "robust_clusters_digits": {
        "objective": "finetune",
        "augment.crop_scale": None,
        "augment.crop_padding": 1,
        "augment.jitter_p": 0.0,
        "finetune.eps": 0.1,
        "finetune.step_size": 0.025,
        "finetune.head_lr": 0.5,  # large, because an epoch has only two updates
        "train.epochs": 30,
    },
}
RECIPES |= ROBUST | ROBUST_CLUSTERS
# The teacher that `intnacl run` trains by its data set's recipe: the loss that is most accurate for its time
# on CIFAR-100 (docs/claims.md), trained for long, because the teacher's accuracy bounds the student's.
TEACHER = {"loss.nacl": "mixnca", "loss.negatives": "g2", "loss.num_positives": 2}
TEACHER_EPOCHS = {"paper": 200}  # by recipe; other recipes keep their epochs
# Settings that the teacher takes from its student, besides attacks and probe, so that both can be compared.
SHARED = (
    "dataset", "root", "size", "holdout", "seed", "encoder.name", "encoder.width", "encoder.mean",
    "encoder.std", "train.precision", "train.compile", "train.cuda_graph", "train.trackers",
)  # fmt: skip
RECIPE_OF = {"digits": "digits", "tinyimagenet": "tinyimagenet"}  # "own" for data at a path, else "paper"
# Defaults of earlier versions that have changed.
FORMER_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "train.lr": (3e-4, 1e-3),
    "evaluation.eps": ((0.002,),),
    "evaluation.attacks": (("fgsm", "pgd"),),
    "evaluation.fgsm_eps": ((),),
}
PRESET_SETTINGS = {f"loss.{name}" for row in PRESETS.values() for name in row}


def resolve(
    overrides: Mapping[str, Any] | None = None,
    *,
    file: Path | None = None,
    preset: str | None = None,
    recipe: str | None = None,
    device: torch.device | None = None,
) -> RunConfig:
    """Return the configuration of recipe, file, preset and overrides (dotted keys, strings or values)."""
    given = dict(overrides or {})
    from_file = dict(flatten(read_toml(file, "config file"))) if file else {}
    if "tables" in from_file:
        raise InputError(f"config file {file} is a grid of tables: give it to `intnacl reproduce --config`.")
    file_preset, file_recipe = (from_file.pop(name, None) for name in ("preset", "recipe"))
    given_recipe = given.pop("recipe", None)
    if preset is not None:  # it replaces the file's settings that presets decide
        from_file = {key: value for key, value in from_file.items() if key not in PRESET_SETTINGS}
    named = next((name for name in (preset, file_preset) if name is not None), None)
    preset = "simclr" if named is None else named
    recipe = next((name for name in (recipe, given_recipe, file_recipe) if name is not None), None)
    if recipe is not None:
        check_choice("recipe", recipe, RECIPES)
    shared = shared_with(from_file | given) if recipe in ROBUST_CLUSTERS else {}
    dataset = (shared | from_file | given).get("dataset", RunConfig.dataset)
    usual = recipe_of(str(dataset))
    recipe = usual if recipe is None else recipe
    if recipe in ("robust", "robust_clusters") and f"{recipe}_{usual}" in RECIPES:
        recipe = f"{recipe}_{usual}"
    check_choice("preset", preset, PRESETS)
    loss = {f"loss.{k}": v for k, v in PRESETS[preset].items()}
    below = RECIPES[usual] | shared if recipe in ROBUST | ROBUST_CLUSTERS else {}
    base = override(RunConfig(recipe=recipe), below | RECIPES[recipe])
    config = override(override(base, loss | from_file), given)
    if _rate_of(config) != _rate_of(base) and "train.lr" not in from_file | given:
        config = override(config, {"train.lr": None})  # a recipe's rate only suits its own optimiser
    if named is not None and config.objective == "distill":
        raise InputError(
            f"preset={named!r} is a contrastive loss, which distillation does not use: for the teacher, give "
            f"--set distill.teacher_settings=preset={named}."
        )
    if named is not None and shared:
        raise InputError(
            f"preset={named!r} is a contrastive loss, which fine-tuning on clusters lacks: leave it out."
        )
    if shared and not config.finetune.clusters:
        raise InputError(
            "finetune.clusters is not given: give the number of clusters that replace labels, such as --set "
            "finetune.clusters=100. Figures report it, because the number of classes is a fact about labels."
        )
    config, base = (replace(one, train=one.train.with_usual_rate()) for one in (config, base))
    own = all(getattr(config, part) == getattr(base, part) for part in ("augment", "encoder", "adversary"))
    optimizer = [field.name for field in fields(OptimizerConfig)]
    if not own or any(getattr(config.train, name) != getattr(base.train, name) for name in optimizer):
        config = replace(config, recipe="custom")
    for name in (config.dataset, *config.evaluation.transfer):
        check_name(name)
    if isinstance(config.encoder.pretrained, str):
        path = absolute_root(config.encoder.pretrained)
        config = override(config, {"encoder.pretrained": path})
    if config.encoder.pretrained:
        normalisation = zip(
            ("encoder.mean", "encoder.std"), own_normalisation(config.encoder.name), strict=True
        )
        own_values = {key: value for key, value in normalisation if key not in from_file | given}
        config = override(config, own_values)
    paths = {
        "distill.teacher": config.distill.teacher,
        "finetune.encoder": config.finetune.encoder,
        "finetune.clustered": config.finetune.clustered,
    }
    for key, path in paths.items():
        if path is not None and located(path) == Path(path):  # not the name of a shipped encoder
            config = override(config, {key: absolute_root(path)})
    transfer = tuple(map(absolute_name, config.evaluation.transfer))
    config = replace(
        config,
        dataset=absolute_name(config.dataset),
        root=absolute_root(config.root),
        evaluation=replace(config.evaluation, transfer=transfer),
    )
    return replace(config, train=config.train.on(device)) if device else config


def _rate_of(config: RunConfig) -> str:
    """Return the optimiser whose default learning rate applies; adamw uses adam's."""
    optimizer = config.train.optimizer
    return optimizer if optimizer in RATE_OF_256 else "adam"


def teacher_of(config: RunConfig) -> RunConfig:
    """Return the configuration of the teacher that a run of objective=distill trains for itself.

    A recipe or a preset among `distill.teacher_settings` replaces the default teacher.
    """
    student, usual = dict(flatten(asdict(config))), recipe_of(config.dataset)
    given: dict[str, str] = {}
    for text in config.distill.teacher_settings:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(
                f"distill.teacher_settings={text!r} must be KEY=VALUE, such as train.epochs=100."
            )
        given[key] = value
    preset, settings = given.pop("preset", None), {} if "recipe" in given else dict(TEACHER)
    if preset is not None:
        settings = {}
    if usual in TEACHER_EPOCHS and "recipe" not in given:
        settings["train.epochs"] = TEACHER_EPOCHS[usual]
    settings |= {key: student[key] for key in SHARED}
    settings |= {key: value for key, value in student.items() if key.startswith(("probe.", "evaluation."))}
    return resolve(settings | given, preset=preset)


def recipe_of(dataset: str) -> str:
    """Return the name of a data set's recipe."""
    return RECIPE_OF.get(dataset, "own" if is_at_path(dataset) else "paper")


def as_begun(config: RunConfig, begun: RunConfig) -> tuple[RunConfig, dict[str, Any]]:
    """Return the configuration with the former defaults that the run was started with, and these defaults.

    A setting counts as one of them if the run has the former default, and the configuration has today's.
    """
    old, new = dict(flatten(asdict(begun))), dict(flatten(asdict(config)))
    today = {key: RECIPES["own"].get(key) for key in FORMER_DEFAULTS} if is_at_path(config.dataset) else {}
    if config.train.optimizer in RATE_OF_256:
        today["train.lr"] = replace(config.train, lr=None).with_usual_rate().lr
    kept = {
        key: old[key]
        for key, value in today.items()
        if new[key] == value and old[key] != value and old[key] in FORMER_DEFAULTS[key]
    }
    return override(config, kept), kept


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the content of a TOML file; `what` is its name in errors."""
    try:
        return parse_toml(read_file(path).decode("utf-8-sig"))  # files from Windows may begin with a BOM
    except OSError as error:
        raise InputError(f"{what} {path}: {error.strerror}.") from error
    except ValueError as error:  # bad syntax, nested too deeply, or not text
        raise InputError(f"{what} {path} is not TOML: {error}.") from error


def warn_of_unused(given: Mapping[str, Any], configs: Collection[RunConfig]) -> None:
    """Warn of each setting that was given and that none of the runs uses."""
    needs = [unused(config) for config in configs]
    for key, value in given.items():
        if all(key in need for need in needs):
            text = f"{key}={value} has no effect here: it is used with {needs[0][key]}."
            warnings.warn(text, InputWarning, stacklevel=2)
