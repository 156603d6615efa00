"""`report.html` of one run: its numbers and figures in one self-contained file."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from intnacl.attacks.named import ATTACK_NAMES, named_attack
from intnacl.errors import InputError
from intnacl.evaluation.hcl_probe import HCL
from intnacl.evaluation.probe import ProbeConfig
from intnacl.files import write_file
from intnacl.plots.curves import draw_learning, draw_probe, draw_robustness
from intnacl.plots.gallery import draw_examples
from intnacl.plots.style import inline_svg
from intnacl.runs.attack import examples
from intnacl.runs.folder import loss_name
from intnacl.runs.measurements import plain
from intnacl.runs.opened import Subject
from intnacl.runs.result import Measured, write_result
from intnacl.training.journal import records

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

OWN = "the run's own"  # a probe under the run's protocol


def template_environment(package: str, *, autoescape: bool = True, **options: Any) -> "Environment":
    """Return the environment of a package's templates, where a name that they do not know is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(package), undefined=StrictUndefined, autoescape=autoescape, trim_blocks=True,
        lstrip_blocks=True, **options,
    )  # fmt: skip


def write_result_and_page(found: Measured) -> bool:
    """Write result and page if everything that the configuration asks for is measured; returns whether."""
    result = write_result(found)
    if result is not None:
        write_file(found.subject.folder.page, render(found, result).encode())
    return result is not None


def render(found: Measured, result: dict[str, Any]) -> str:
    """The page as text. Everything from outside is escaped; the drawings are our own SVG."""
    environment = template_environment("intnacl.runs")
    environment.filters["percent"] = lambda value: "–" if value is None else f"{value:.2f}"
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=1, ensure_ascii=False)
    subject, config = found.subject, found.subject.config
    return environment.get_template("run.html").render(
        title=f"{loss_name(config)} on {config.dataset}",
        config=config,
        result=result,
        attack_names=ATTACK_NAMES,
        at=attacks_at(result),
        knn=found.own_knn(),
        sections=[_data_set(subject, name, result) for name in result["accuracy"]],
        learning=_learning(subject),
        probe_curve=_probe_curve(found.probe_curves()),
        probes=_probes(found, result),
    )


def best_rows(result: dict[str, Any], dataset: str) -> list[dict[str, Any]]:
    """One row for each attack and eps on a data set: of several, the one over the most images.

    Worst cases over other attacks on the same images all bound the true one: the lowest is nearest. One
    over a single attack is left out: beside those over several, FGSM's curve would pass for a worst case.
    """
    chosen: dict[tuple[str, float], dict[str, Any]] = {}
    for row in sorted(result["attacks"], key=lambda row: (row["images"], -row["accuracy"])):
        if row["dataset"] == dataset and not of_one_attack(row):
            chosen[row["name"], row["eps"]] = row
    return sorted(chosen.values(), key=lambda row: (row["eps"], row["name"] == "worst_case"))


def attacks_at(result: dict[str, Any]) -> str:
    """Where FGSM and PGD of the accuracies are: "eps 0.02", or "eps 0.02 on 40 images" if the test set has
    more, whose clean accuracy stands beside them; empty: there are none."""
    on = on_images(result)
    return "".join(f"eps {eps:.4g}{on}" for eps in result["config"]["evaluation"]["eps"][:1])


def on_images(result: dict[str, Any]) -> str:
    """ " on 40 images" where a run's attacks are on fewer than all test images, else nothing."""
    some = result["config"]["evaluation"]["images"]
    most = max((count["test"] for count in result["protocol"]["images"].values()), default=0)
    return f" on {some:,} images" if some is not None and some < most else ""


def of_one_attack(row: dict[str, Any]) -> bool:
    """Whether a row is the worst case of a single attack, which is that attack once more."""
    return len(row.get("of", ())) == 1


def _data_set(subject: Subject, name: str, result: dict[str, Any]) -> dict[str, Any]:
    """What the page tells of robustness on one data set."""
    rows = best_rows(result, name)
    section: dict[str, Any] = {"dataset": name, "rows": rows, "curve": None, "examples": None}
    if not rows:
        return section
    section["curve"] = inline_svg(lambda: draw_robustness(rows), f"accuracy over the attack's eps on {name}")
    eps = max(row["eps"] for row in rows)
    with suppress(InputError):  # the images may be gone: a copied run is measured on others as well
        section["examples"] = inline_svg(
            lambda: attacked_images(subject, name, eps, rows), f"images of {name} before and after the attack"
        )
    return section


def attacked_images(subject: Subject, name: str, eps: float, rows: Sequence[dict[str, Any]]) -> "Figure":
    """Some images of a data set before and after the strongest attack that `rows` has at this eps.

    In place of AutoAttack, which takes its time, tuned PGD.
    """
    stand_in = {"autoattack": "pgd_tuned"}
    measured = {stand_in.get(row["name"], row["name"]) for row in rows if row["eps"] == eps}
    attack = next((attack for attack in ("pgd_tuned", "pgd", "fgsm") if attack in measured), "pgd_tuned")
    found, classes = examples(subject, name, named_attack(attack, eps))
    title = f"{ATTACK_NAMES[attack]} at eps {eps:.4g}; the title is the prediction, * a wrong one"
    return draw_examples(found, classes, title=title)


def _probes(found: Measured, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Every linear probe and what it does otherwise than the run's own; none where there is no other."""
    rows = [row | {"kind": _kind(row, found.subject.config.probe)} for row in result["probes"]]
    return rows if any(row["kind"] != OWN for row in rows) else []


def _kind(row: dict[str, Any], own: ProbeConfig) -> str:
    """HCL's probe or the run's own, and settings by which this one differs from it."""
    is_hcl = row["protocol"] == "hcl_probe"
    usual = plain(asdict(replace(HCL, seed=own.seed) if is_hcl else own))
    other = [f"{key} = {value}" for key, value in row["probe"].items() if value != usual.get(key)]
    return ", ".join([*(["HCL's"] if is_hcl else []), *other]) or OWN


def _learning(subject: Subject) -> str | None:
    log = subject.folder.log
    return inline_svg(lambda: draw_learning(records(log)), "learning curves") if log.exists() else None


def _probe_curve(curves: dict[str, list[float]]) -> str | None:
    return inline_svg(lambda: draw_probe(curves), "probe accuracy over epochs") if curves else None
