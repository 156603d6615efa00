"""Attacks on the classifiers of a run: each is one measurement, which resumes where it was stopped."""

import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from intnacl.attacks.named import Attack, AttackRow, eps_text, named_attack
from intnacl.attacks.sanity import accuracy_warnings
from intnacl.console import watched
from intnacl.evaluation import robustness
from intnacl.runs.config import EvaluationConfig
from intnacl.runs.examples import store_examples
from intnacl.runs.folder import digest
from intnacl.runs.heads import ProbeProtocol
from intnacl.runs.images import pair
from intnacl.runs.measurement import (
    Figures,
    Measurement,
    Settings,
    Verdicts,
    current_format,
    environment,
    plain,
)

if TYPE_CHECKING:
    from intnacl.runs.opened import Run

BATCH = 512  # images per pass through the model


def attacks_at(names: Iterable[str], eps: float, images: int | None) -> tuple[Attack, ...]:
    """Return the named attacks at one radius."""
    return tuple(named_attack(name, eps, images=images) for name in dict.fromkeys(names))


def planned_attacks(wanted: EvaluationConfig) -> list[tuple[Attack, ...]]:
    """Return the configured attacks, grouped by radius; radii with FGSM alone form one group, the last."""
    rounds = [attacks_at(names, eps, wanted.images) for eps, names in wanted.rounds]
    curve = tuple(attacks[0] for attacks in rounds if [attack.name for attack in attacks] == ["fgsm"])
    return [attacks for attacks in rounds if attacks[0] not in curve] + ([curve] if curve else [])


def describe(dataset: str, attacks: Sequence[Attack]) -> str:
    """Describe attacks in one line, for progress messages."""
    names = ", ".join(dict.fromkeys(attack.name for attack in attacks))
    radii = ", ".join(eps_text(eps) for eps in sorted({attack.eps for attack in attacks}))
    return f"{names} {dataset} at eps {radii}"


def measure_attacks(
    run: "Run", dataset: str, attacks: Sequence[Attack], protocol: ProbeProtocol | None = None
) -> list[Measurement]:
    """Measure the accuracy of a classifier of the run under each attack that is not measured yet.

    Work that the attacks share is done once. Each measurement is stored after every portion of the images,
    and a stopped one resumes from there.
    """
    attacks = list(dict.fromkeys(attacks))
    settings = {
        attack: run.measurements.attack_settings(dataset, attack.settings(), protocol) for attack in attacks
    }

    def stored() -> dict[Attack, Measurement]:
        current = {
            key: run.measurements.current("attack", value, run.images) for key, value in settings.items()
        }
        return {attack: found for attack, found in current.items() if found is not None}

    measured = stored()
    if not all(attack in measured and measured[attack].is_complete for attack in attacks):
        with run.measurements.locked(run.measurements.path("attack", one).stem for one in settings.values()):
            measured = stored()  # another process may have completed some of them
            _attack(run, dataset, settings, measured, protocol)
    return list({digest(measured[attack].settings): measured[attack] for attack in attacks}.values())


def _attack(
    run: "Run",
    dataset: str,
    settings: Mapping[Attack, Settings],
    measured: dict[Attack, Measurement],
    protocol: ProbeProtocol | None,
) -> None:
    """Complete `measured`, attack by attack; store each after every portion of the images."""
    left = [attack for attack in settings if attack not in measured or not measured[attack].is_complete]
    if not left:
        return
    images = run.images.labelled(dataset)
    queries, classifier = pair(images.queries), run.classifier(dataset, protocol=protocol)
    begun = {attack: found.verdicts for attack, found in measured.items() if found.verdicts}
    stopped = {
        attack: robustness.Underway(one["underway"]["stage"], _bools(one["underway"]["right"]))
        for attack, one in begun.items()
        if "underway" in one
    }
    verdicts = {
        attack: Verdicts(clean=one["clean"], attacked=one["attacked"])
        for attack in left
        for one in [begun.get(attack, Verdicts(clean="", attacked=""))]
    }
    seconds = {attack: measured[attack].time_s if attack in begun else 0.0 for attack in left}
    total = most_passes(left, len(images.queries))
    with watched(classifier, f"attacks on {dataset}, passes of images", total):
        began = time.monotonic()
        zero = robustness.zero_gradients(classifier, *queries, batch_size=BATCH, device=run.device)
        done = {attack: len(verdicts[attack]["clean"]) for attack in left}
        portions = robustness.verdicts(
            classifier, *queries, left, done=done, underway=stopped, batch_size=BATCH, device=run.device
        )
        for portion in portions:
            attack, former = portion.attack, verdicts[portion.attack]
            clean, attacked = _digits(portion.clean), _digits(portion.right)
            so_far = Verdicts(clean=former["clean"] + clean, attacked=former["attacked"] + attacked)
            if portion.underway is None:
                verdicts[attack] = stored = so_far
            else:
                stored = Verdicts(**former, underway={"stage": portion.underway, "right": attacked})
            seconds[attack] += time.monotonic() - began
            clean_N, right_n = _bools(so_far["clean"]), _bools(so_far["attacked"])
            figures = robustness.figures(clean_N, {attack: right_n}, zero)
            whole = {
                "images": len(images.queries),
                "split": images.split,
                "checksums": images.checksums,
            }
            measured[attack] = Measurement(
                kind="attack",
                settings=plain(settings[attack]),
                figures=cast(Figures, {**figures, **whole}),
                time_s=round(seconds[attack], 3),
                environment=environment(run.device),
                format=current_format("attack", settings[attack]),
                verdicts=stored,
            )
            run.measurements.save(measured[attack])
            began = time.monotonic()
    if protocol in (None, run.measurements.own_protocol(dataset)):
        store_examples(run, dataset, left)
    for folder in run.folder.measurements.glob("attack-*.begun"):  # left by an earlier version
        shutil.rmtree(folder, ignore_errors=True)


def _digits(right_n: Tensor) -> str:
    return "".join("01"[right] for right in right_n.tolist())


def _bools(digits: str) -> Tensor:
    return torch.tensor([digit == "1" for digit in digits], dtype=torch.bool)


def most_passes(attacks: Iterable[Attack], images: int) -> int | None:
    """Return an upper bound on the images that pass through the classifier; None if there is none."""
    total = images + min(images, 1024)  # clean, and to look for zero gradients
    for attack in attacks:
        if attack.passes is None:
            return None
        total += (attack.passes + 2) * min(images, attack.images or images)  # classified twice at the end
    return total


# ---- rows --------------------------------------------------------------------------------------------------


class AttackGroup(NamedTuple):
    """Measured attacks on one data set that are reported together."""

    attacks: list[Measurement]
    also_worst_case: list[Measurement]
    """Attacks of another group on the same images at the same radius, which count for the worst case too."""


def group_attacks(found: Iterable[Measurement], wanted: EvaluationConfig) -> list[AttackGroup]:
    """Group the measured attacks on one data set.

    The configured attacks come first, in the configuration's order. The others are grouped by radius and
    number of images; configured attacks that share both count for their worst case. A file of an earlier
    version may hold several attacks, which form a group.
    """
    keys = [(digest(a.settings()), i) for i, group in enumerate(planned_attacks(wanted)) for a in group]
    place = {key: place for place, (key, _) in enumerate(keys)}
    planned: dict[int, list[Measurement]] = {}
    others: dict[object, list[Measurement]] = {}
    in_order = sorted(found, key=lambda one: place.get(digest(one.settings["attacks"][0]), len(keys)))
    for one in in_order:
        first = digest(one.settings["attacks"][0])
        if first in place:
            planned.setdefault(keys[place[first]][1], []).append(one)
        else:
            several = len(one.settings["attacks"]) > 1
            others.setdefault(digest(one.settings) if several else _eps_and_images(one), []).append(one)
    configured = [one for group in planned.values() for one in group]
    return [AttackGroup(group, []) for group in planned.values()] + [
        AttackGroup(group, [one for one in configured if _eps_and_images(one) == _eps_and_images(group[0])])
        for group in others.values()
    ]


def _eps_and_images(one: Measurement) -> tuple[float, int]:
    row = one.figures["attacks"][0]
    return row["eps"], row["images"]


def group_rows(group: AttackGroup) -> list[AttackRow]:
    """Return the rows of a group's attacks, then their worst case at each radius.

    The worst case is computed from the verdicts. Measurements of earlier versions have no verdicts, but hold
    their worst cases.
    """
    rows = [row for one in group.attacks for row in one.figures["attacks"]]
    for one in group.attacks:
        for row in one.figures["worst_case"] if one.verdicts is None else ():
            of = [attack["name"] for attack in one.settings["attacks"] if attack["eps"] == row["eps"]]
            rows.append({**row, "of": of})
    judged = [(one, one.verdicts) for one in (*group.also_worst_case, *group.attacks) if one.verdicts]
    for eps in sorted({_eps_and_images(one)[0] for one in group.attacks if one.verdicts}):
        at_eps = [(one, verdicts) for one, verdicts in judged if _eps_and_images(one)[0] == eps]
        images = min(_eps_and_images(one)[1] for one, _ in at_eps)
        clean = at_eps[0][1]["clean"][:images]
        marks = zip(clean, *(verdicts["attacked"][:images] for _, verdicts in at_eps), strict=True)
        right = sum(all(mark == "1" for mark in image) for image in marks)
        rows.append(
            {
                "name": "worst_case",
                "eps": eps,
                "steps": None,
                "step_size": None,
                "restarts": None,
                "images": images,
                "accuracy": 100 * right / images,
                "clean": 100 * clean.count("1") / images,
                "of": [one.settings["attacks"][0]["name"] for one, _ in at_eps],
            }
        )
    return rows


def attack_warnings(groups: Sequence[AttackGroup]) -> list[str]:
    """Return warnings about doubtful accuracies under attack on one data set, within and across groups."""
    rows = [[row for one in group.attacks for row in one.figures["attacks"]] for group in groups]
    found: list[str] = []
    for group, group_of_rows in zip(groups, rows, strict=True):
        found += [warning for one in group.attacks for warning in one.figures["warnings"]]
        found += accuracy_warnings(group_of_rows)
    return list(dict.fromkeys(found + accuracy_warnings([row for some in rows for row in some])))
