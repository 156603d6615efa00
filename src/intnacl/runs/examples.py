"""Attacked images of a run, stored when attacks are measured, for the run's page and for pictures."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import torch
from torch import Tensor

from intnacl.attacks.named import Attack, AttackSettings, named_attack
from intnacl.errors import printable
from intnacl.evaluation import robustness
from intnacl.files import fits, parse_json, read_file, write_file
from intnacl.models.weights import parse_tensors
from intnacl.runs.folder import digest
from intnacl.runs.images import pair

if TYPE_CHECKING:
    from intnacl.runs.opened import Run

SHOWN = 8  # images in the grid
STRENGTH = ("fgsm", "pgd", "pgd_tuned")  # gradient attacks, the strongest last


class Examples(NamedTuple):
    """Some test images before and after an attack."""

    attack: AttackSettings
    classes: tuple[str, ...]
    tensors: dict[str, Tensor]
    """The result of `robustness.examples`."""


class ExampleFacts(TypedDict):
    """The facts that are stored beside the images."""

    of: str
    """The digest of the classifier and its images."""
    attack: AttackSettings
    classes: list[str]


def store_examples(run: "Run", dataset: str, attacks: Sequence[Attack]) -> None:
    """Store some test images under the strongest gradient attack at the largest radius, for pictures.

    AutoAttack is slow, so tuned PGD replaces it. Images stored for a larger radius or a stronger attack are
    kept.
    """
    from safetensors.torch import save

    eps = max(attack.eps for attack in attacks)
    names = {"pgd_tuned" if a.name == "autoattack" else a.name for a in attacks if a.eps == eps}
    strongest = next((name for name in reversed(STRENGTH) if name in names), None)
    stored = load_examples(run, dataset)
    if strongest is None or (
        stored is not None
        and (stored.attack["eps"], STRENGTH.index(stored.attack["name"])) >= (eps, STRENGTH.index(strongest))
    ):
        return
    queries, attack = run.images.labelled(dataset).queries, named_attack(strongest, eps)
    chosen = queries.spread(SHOWN)
    images, labels = (tensor[chosen] for tensor in pair(queries))
    found = robustness.examples(run.classifier(dataset), images, labels, attack, device=run.device)
    facts = {"of": _examples_key(run, dataset), "attack": attack.settings(), "classes": queries.classes}
    tensors = {name: tensor.contiguous() for name, tensor in (found | {"clean": images}).items()}
    write_file(run.folder.examples(dataset), save(tensors, {"intnacl": json.dumps(facts, sort_keys=True)}))


def load_examples(run: "Run", dataset: str) -> Examples | None:
    """Return the stored images; None if there are none, or if they are of other images or weights."""
    from safetensors import SafetensorError

    try:
        metadata, tensors = parse_tensors(read_file(run.folder.examples(dataset)))
        facts = parse_json(metadata["intnacl"])
        if not fits(facts, ExampleFacts) or facts["of"] != _examples_key(run, dataset):
            return None
        found = Examples(facts["attack"], tuple(map(printable, facts["classes"])), tensors)
        if not _is_whole(found):
            return None
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    tensors["clean"] = tensors["clean"].float() / 255
    return found


def _is_whole(found: Examples) -> bool:
    """Return True if the stored tensors agree with each other; a damaged header may claim anything."""
    attack, tensors = found.attack, found.tensors
    clean = tensors["clean"]
    classes = [tensors[name] for name in ("labels", "predicted", "predicted_adversarial")]
    return (
        attack["name"] in STRENGTH
        and clean.ndim == 4
        and (clean.dtype, tensors["adversarial"].dtype) == (torch.uint8, torch.float32)
        and clean.shape == tensors["adversarial"].shape
        and all(one.dtype == torch.int64 and one.shape == clean.shape[:1] for one in classes)
        and 0 <= int(torch.stack(classes).min()) <= int(torch.stack(classes).max()) < len(found.classes)
    )


def _examples_key(run: "Run", dataset: str) -> str:
    """Return a digest of the classifier and its images."""
    settings = run.measurements.classifier_settings(dataset)
    found = run.measurements.find("probe", settings)
    return digest([settings, found.figures["checksums"] if found else None])
