"""Names of runs, which include a hash of all that the result depends on, and keys of equivalent runs."""

import hashlib
import json
from dataclasses import fields, replace
from functools import cache
from typing import Any

from intnacl.data.augmentations import AugmentConfig
from intnacl.evaluation.probe import ProbeConfig
from intnacl.losses.config import LossConfig
from intnacl.runs.config import FREE, EvaluationConfig, RunConfig, flatten, to_dict, unused
from intnacl.runs.resolve import resolve

DEFAULTS = 2  # raise when a setting's default changes, so that runs with the old default get other names


def canonical(config: RunConfig) -> RunConfig:
    """Return the configuration with unused settings of loss and mixing reset to those of the recipes.

    Equivalent runs then have equal configurations.
    """
    names = unused(config)
    loss = {f.name: getattr(_simclr(), f.name) for f in fields(LossConfig) if f"loss.{f.name}" in names}
    unmixed = replace(config.augment, mix_of=AugmentConfig.mix_of)
    augment = unmixed if "augment.mix_of" in names else config.augment
    return replace(config, loss=replace(config.loss, **loss), augment=augment)


@cache
def _simclr() -> LossConfig:
    """Return the default loss of the recipes."""
    return resolve().loss


def training_key(config: RunConfig) -> str:
    """Return a key that is equal for runs with the same training, up to the seed and the measurements."""
    return _text(replace(config, seed=0, evaluation=EvaluationConfig()))


def encoder_key(config: RunConfig) -> str:
    """Return a key that is equal for runs that end with the same encoder, whatever is measured on it."""
    return _text(replace(config, evaluation=EvaluationConfig(), probe=ProbeConfig()))


def run_name(config: RunConfig) -> str:
    """Return a readable name with a hash of all that the result depends on."""
    loss = config.loss
    parts = [config.dataset.replace("/", "_").replace(":", "_")]
    if config.objective != "contrastive":
        parts += [config.objective]
    else:
        parts += [loss.nacl, loss.negatives, f"M{loss.num_positives}"]
        parts += [f"lam{loss.lam:g}"] if loss.nacl == "mixnca" else []
        parts += [f"alpha{loss.alpha:g}"] if loss.alpha else []
    parts += [f"{config.train.epochs}epochs", f"seed{config.seed}"]
    digest = hashlib.blake2b(_text(config).encode(), digest_size=5).hexdigest()
    return "-".join([*("".join(c if c.isalnum() or c in "._" else "_" for c in p) for p in parts), digest])


def _text(config: RunConfig) -> str:
    """Return all settings that differ from their defaults, so that new settings do not change old names."""
    usual = _defaults()
    flat = {key: value for key, value in flatten(to_dict(config)) if key not in FREE and value != usual[key]}
    return json.dumps({"defaults": DEFAULTS, **flat}, sort_keys=True)


@cache
def _defaults() -> dict[str, Any]:
    usual = RunConfig()
    return dict(flatten(to_dict(replace(usual, train=usual.train.with_usual_rate()))))
