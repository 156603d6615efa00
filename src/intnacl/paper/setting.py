"""Whether a run is the paper's setting: only then may a published value stand beside it.

What the paper states must hold. What it leaves open (the strength of the colour jitter, the head, the
temperature …) is a choice: it is named, and the comparison stands.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from intnacl.paper import published
from intnacl.paper.cost import SIZES
from intnacl.paper.run_names import canonical
from intnacl.runs.config import FREE, RunConfig, flatten, resolve, to_dict

STATED: dict[str, tuple[Any, ...]] = {
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
}
BY_DATASET: dict[str, dict[str, tuple[Any, ...]]] = {
    "cifar100": {"train.batch_size": (256,), "probe.epochs": (1000,)},
    "tinyimagenet": {"train.batch_size": (128,), "probe.epochs": (200,)},
}
UNSTATED_WHEN_SUPERVISED = ("augment.", "loss.")


def departures(config: RunConfig, result: Mapping[str, Any] | None = None) -> list[str]:
    """What a run does otherwise than the paper states; none: it is the paper's setting."""
    if config.dataset not in BY_DATASET:
        return [f"data set {config.dataset}"]
    flat = dict(flatten(to_dict(config)))
    lengths = {"train.epochs": published.epochs(config.dataset, config.objective)}
    stated = STATED | BY_DATASET[config.dataset] | lengths
    found = [
        f"{key} = {flat[key]}, not {' or '.join(map(str, allowed))}"
        for key, allowed in stated.items()
        if flat[key] not in allowed
        and not (config.objective == "supervised" and key.startswith(UNSTATED_WHEN_SUPERVISED))
    ]
    return found + list(_other_images(result or {}))


def _other_images(result: Mapping[str, Any]) -> Iterator[str]:
    """A part of a data set is another data set."""
    for dataset, images in result.get("protocol", {}).get("images", {}).items():
        counts = (images["train"], images["test"])
        whole = SIZES[dataset][:2] if dataset in SIZES else counts
        if counts != whole:
            yield f"{dataset} has {counts[0]:,} + {counts[1]:,} images, not {whole[0]:,} + {whole[1]:,}"


def choices(config: RunConfig) -> list[str]:
    """Settings that the paper leaves open and the run uses, where they are not the recipe's."""
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
