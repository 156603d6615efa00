"""Which settings of loss and views a run does not use, and what would make it use them."""

import warnings
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from intnacl.attacks.training_view import AdversaryConfig
from intnacl.errors import InputWarning
from intnacl.losses.integrated import LossConfig
from intnacl.runs.config import RunConfig

LOSS = tuple(f"loss.{field.name}" for field in fields(LossConfig))
ADVERSARY = tuple(f"adversary.{field.name}" for field in fields(AdversaryConfig))
SEVERAL = "loss.num_positives above 1"


def unused(config: RunConfig) -> dict[str, str]:
    """Dotted name of each setting that the run does not use -> the settings under which runs do."""
    if config.objective == "supervised":
        return dict.fromkeys((*LOSS, *ADVERSARY, "augment.mix_of"), "objective=contrastive")
    loss = config.loss
    several, robust, g = loss.num_positives > 1, loss.alpha > 0, {loss.negatives}
    if robust:
        g |= {loss.robust_negatives or loss.negatives, config.adversary.negatives}
    mixed = ("loss.lam", "loss.mix_negatives", "augment.mix_of")
    rules = (
        (several, ("loss.nacl",), SEVERAL),
        (several and loss.nacl == "nca", ("loss.denominator",), f"loss.nacl=nca and {SEVERAL}"),
        (several and loss.nacl == "mixnca", mixed, f"loss.nacl=mixnca and {SEVERAL}"),
        (robust, ("loss.robust_negatives", "loss.weight", *ADVERSARY), "loss.alpha above 0"),
        (
            robust and loss.weight == "loss",
            ("loss.detach_weight",),
            "loss.weight=loss and loss.alpha above 0",
        ),
        (g != {"g0"}, ("loss.tau_plus",), "loss.negatives=g1 or g2"),
        ("g2" in g, ("loss.beta",), "loss.negatives=g2"),
    )
    return {name: need for used, names, need in rules if not used for name in names}


def warn_of_unused(given: Mapping[str, Any], configs: Collection[RunConfig]) -> None:
    """Warn of each setting that was given and that none of the runs uses."""
    needs = [unused(config) for config in configs]
    for key, value in given.items():
        if all(key in need for need in needs):
            text = f"{key}={value} changes nothing here: it is used with {needs[0][key]}."
            warnings.warn(text, InputWarning, stacklevel=2)
