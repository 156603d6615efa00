"""Attacks on the classifiers of a run folder, one part for each data set and eps, or curve over eps."""

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from torch import Tensor

from intnacl.attacks.named import Attack, named_attack
from intnacl.attacks.sanity import accuracy_warnings
from intnacl.console import watched
from intnacl.evaluation import robustness
from intnacl.runs.config import EvaluationConfig
from intnacl.runs.measurements import Part, part_path
from intnacl.runs.opened import Subject, pair
from intnacl.runs.probes import checksums, measured_now, probed
from intnacl.runs.verdicts import Verdicts

BATCH = 512  # images of a pass through the model
SHOWN = 8  # images of the grid


def plan(names: Iterable[str], eps: float, images: int | None) -> tuple[Attack, ...]:
    """The named attacks at one eps."""
    return tuple(named_attack(name, eps, images=images) for name in dict.fromkeys(names))


def plans(wanted: EvaluationConfig) -> list[tuple[Attack, ...]]:
    """The attacks that a configuration asks for, radius by radius; FGSM alone at all radii together."""
    rounds = [plan(names, eps, wanted.images) for eps, names in wanted.rounds]
    curve = tuple(attacks[0] for attacks in rounds if [attack.name for attack in attacks] == ["fgsm"])
    return [attacks for attacks in rounds if attacks[0] not in curve] + ([curve] if curve else [])


def stage_name(name: str, attacks: tuple[Attack, ...]) -> str:
    """What is done, in one line."""
    names = ", ".join(dict.fromkeys(attack.name for attack in attacks))
    radii = ", ".join(f"{eps:.4g}" for eps in dict.fromkeys(attack.eps for attack in attacks))
    return f"{names} {name} at eps {radii}"


def run_attacks(subject: Subject, name: str, attacks: tuple[Attack, ...]) -> Part:
    """Accuracy on a data set under attacks, and their worst case at each eps."""
    settings = attack_settings(subject, name, attacks)
    begun = part_path(subject.folder, "attack", settings).with_suffix(".begun")
    verdicts = Verdicts(begun, name, subject.device)

    def _work() -> dict[str, Any]:
        classifier, train, test = probed(subject, name)
        images, device = checksums(train, test), subject.device
        done = verdicts.read(images, attacks)
        with watched(classifier, f"attacks on {name}, passes of images", most_passes(attacks, len(test))):
            began = time.monotonic()
            left = robustness.verdicts(
                classifier, *pair(test), attacks, done=done, batch_size=BATCH, device=device
            )
            for found in left:
                verdicts.keep(images, found, began)
                began = time.monotonic()
            zero = robustness.zero_gradients(classifier, *pair(test), batch_size=BATCH, device=device)
        return {**verdicts.figures(zero), "checksums": images}

    part = measured_now(subject, "attack", settings, _work, earlier=lambda: verdicts.earlier_s)
    verdicts.forget()
    return part


def most_passes(attacks: Iterable[Attack], images: int) -> int | None:
    """Images that go through the classifier at most, under all attacks; None: there is no telling."""
    total = images + min(images, 1024)  # without attack, and for zero gradients
    for attack in attacks:
        if attack.passes is None:
            return None
        total += (attack.passes + 2) * min(images, attack.images or images)  # two verdicts
    return total


def attack_warnings(parts: Iterable[Part]) -> list[str]:
    """What is doubtful in attacks on one data set: in each part, and from one part's eps to another's."""
    parts = list(parts)
    found = [warning for part in parts for warning in part.figures["warnings"]]
    rows = [row for part in parts for row in part.figures["attacks"]]
    return list(dict.fromkeys(found + accuracy_warnings(rows)))


def attack_settings(subject: Subject, name: str, attacks: tuple[Attack, ...]) -> dict[str, Any]:
    """What the figures of attacks depend on."""
    return {
        "dataset": name,
        "encoder": subject.checksum,
        "probe": asdict(subject.config.probe),
        "attacks": [attack.settings() for attack in attacks],
    }


def examples(subject: Subject, name: str, attack: Attack) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Some test images before and after an attack, and the names of their classes."""
    classifier, _, test = probed(subject, name)
    chosen = test.spread(SHOWN)
    images, labels = (tensor[chosen] for tensor in pair(test))
    return robustness.examples(classifier, images, labels, attack, device=subject.device), test.classes
