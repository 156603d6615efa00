"""The paper's values, in percent: mean and standard deviation over 5 trials, and the runs comparable to them.

A run is comparable to a value if it follows everything that the paper states. Settings that the paper leaves
open (the strength of the colour jitter, the head, the temperature …) are listed as choices.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from intnacl.data.datasets import DATASETS
from intnacl.paper.run_names import canonical
from intnacl.runs.config import FREE, RunConfig, flatten, to_dict
from intnacl.runs.resolve import resolve

TRIALS = 5
EPS = 0.002
STATED: Mapping[str, tuple[Any, ...]] = {
    "encoder.name": ("resnet18",),
    "train.optimizer": ("adam",),
    "train.lr": (3e-4,),
    "train.accumulate": (1,),
    "train.schedule": ("constant",),
    "probe.solver": ("adam",),
    "loss.tau_plus": (0.01, 0.0),
    "loss.beta": (1.0,),
    "loss.alpha": (0.0, 1.0),
    "adversary.negatives": ("g0",),
    "augment.jitter": ([0.8, 0.8, 0.8, 0.2],),
    "augment.jitter_p": (0.8,),
    "augment.grayscale_p": (0.2,),
    "augment.blur_p": (0.0,),
    "augment.solarize_p": (0.0,),
    "evaluation.images": (None,),
    "holdout": (0,),
}
STATED_OF: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "cifar100": {"train.batch_size": (256,), "probe.epochs": (1000,)},
    "tinyimagenet": {"train.batch_size": (128,), "probe.epochs": (200,)},
}
UNSTATED_WHEN_SUPERVISED = ("augment.", "loss.")
Key = tuple[str | float | None, ...]
"""Data sets of training and measurement, metric, loss and epochs."""


class Value(NamedTuple):
    """A published mean and its standard deviation, which is None if the paper gives none."""

    mean: float
    sd: float | None


def find(config: RunConfig, dataset: str, metric: str, eps: float | None = None) -> Value | None:
    """Return the published value of a run's figure, if any; it is comparable if `departures` is empty."""
    key = figure_key(config, dataset, metric, eps)
    return None if key is None else values().get(key)


def figure_key(config: RunConfig, dataset: str, metric: str, eps: float | None = None) -> Key | None:
    """Return the key of a figure among those of the paper; None if the paper prints no such figure."""
    radius = config.evaluation.eps[0] if eps is None and config.evaluation.eps else eps
    if metric != "clean" and radius != EPS:
        return None
    row: Key = (None,) * 7
    if config.objective == "distill":
        return None
    if config.objective == "contrastive":
        loss, robust = config.loss, config.loss.alpha > 0
        if loss.negatives != "g0" and loss.tau_plus != 0.01:
            return None  # HardNeg and other estimators: drawn in the paper's figures, never printed
        nacl = None if loss.num_positives == 1 else loss.nacl
        weight = {"loss": "what", "relative": "what", "one": "one"}[loss.weight] if robust else None
        estimator = (loss.robust_negatives or loss.negatives) if robust else None
        lam = loss.lam if nacl == "mixnca" else None
        row = (nacl, loss.negatives, lam, loss.num_positives, loss.alpha, estimator, weight)
    return (config.dataset, dataset, metric, *row, config.train.epochs)


@cache
def values() -> Mapping[Key, Value]:
    """Return every value by its `figure_key`; of two printed ones, that with a deviation."""
    found: dict[Key, Value] = {}
    for row in document()["values"]:
        one = row["m"] == 1  # NCA and MIXNCA are the same there
        key = (
            row["pretrain"],
            row["eval"],
            row["metric"],
            None if one else row["nacl"],
            row["g1"],
            None if one else row["lam"],
            row["m"],
            row["alpha"],
            row["g2"],
            row["w"],
            row["epochs"],
        )
        if key not in found or row["std"] is not None:
            found[key] = Value(row["mean"], row["std"])
    return found


@cache
def document() -> Mapping[str, Any]:
    """Return the stored values, one for each number printed in a table of the paper."""
    text = files("intnacl.paper").joinpath("published.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def training_times() -> str:
    """Return the paper's training times on its own machine: loss, epochs and minutes."""
    times = document()["wall_clock_minutes"]
    return ", ".join(f"{t['loss']} {t['minutes']} min for {t['epochs']} epochs" for t in times)


@cache
def lengths(dataset: str, objective: str) -> tuple[int, ...]:
    """Return the numbers of epochs for which the paper prints figures of such runs."""
    rows = [row for row in document()["values"] if row["pretrain"] == dataset]
    return tuple(
        sorted({row["epochs"] for row in rows if (row["g1"] is None) == (objective == "supervised")})
    )


def departures(config: RunConfig, result: Mapping[str, Any] | None = None) -> list[str]:
    """List a run's differences from the paper's setting; a run without any is comparable to its values."""
    if config.dataset not in STATED_OF:
        return [f"data set {config.dataset}"]
    if config.objective == "distill":
        return ["objective = distill"]
    flat = dict(flatten(to_dict(config)))
    stated = {
        **STATED,
        **STATED_OF[config.dataset],
        "train.epochs": lengths(config.dataset, config.objective),
    }
    found = [
        f"{key} = {flat[key]}, not {' or '.join(map(str, allowed))}"
        for key, allowed in stated.items()
        if flat[key] not in allowed
        and not (config.objective == "supervised" and key.startswith(UNSTATED_WHEN_SUPERVISED))
    ]
    for dataset, images in (result or {}).get("protocol", {}).get("images", {}).items():
        entry, (train, test) = DATASETS.get(dataset), (images["train"], images.get("test", 0))
        if "holdout" not in images and entry and entry.counts and (train, test) != entry.counts:
            # A part of a data set counts as another data set.
            found.append(f"{dataset} has {train:,} + {test:,} images, not {entry.images}")
    return found


def choices(config: RunConfig) -> list[str]:
    """List the settings that the paper leaves open and in which the run differs from our recipe."""
    own = dict(flatten(to_dict(canonical(config))))
    recipe = dict(flatten(to_dict(resolve({"dataset": config.dataset, "objective": config.objective}))))
    hidden = {"loss.nacl", "loss.negatives", "loss.num_positives", "loss.lam"}
    if config.loss.weight == "one":  # a row of the paper's tables
        hidden |= {"loss.weight"}
    hidden |= {"seed", "train.epochs", "train.precision", *FREE, *STATED}
    return [
        f"{key} = {value}"
        for key, value in own.items()
        if key not in hidden and not key.startswith("evaluation.") and value != recipe.get(key)
    ]
