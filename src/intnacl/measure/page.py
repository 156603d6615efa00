"""`report.html` of one run: its numbers and figures in one self-contained file."""

import json
from typing import TYPE_CHECKING, Any

from intnacl.data.aside import write_file
from intnacl.evaluation.figures import draw_examples, draw_probe, draw_robustness
from intnacl.evaluation.named_attacks import ATTACK_NAMES, named_attack
from intnacl.measure.drawings import inline_svg
from intnacl.measure.result import own_knn, probe_curves
from intnacl.measure.robust import examples
from intnacl.measure.subject import Subject
from intnacl.stages import loss_name
from intnacl.training.curves import learning_curves
from intnacl.training.journal import LOG

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "report.html"


def write_page(subject: Subject, result: dict[str, Any]) -> None:
    """Write the page of a result."""
    write_file(subject.folder / PAGE, render(subject, result).encode())


def render(subject: Subject, result: dict[str, Any]) -> str:
    """The page as text. Everything from outside is escaped; the drawings are our own SVG."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("intnacl.measure")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = lambda value: "–" if value is None else f"{value:.2f}"
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=1, ensure_ascii=False)
    config = subject.config
    return environment.get_template("run.html").render(
        title=f"{loss_name(config)} on {config.dataset}",
        config=config,
        result=result,
        attack_names=ATTACK_NAMES,
        knn=own_knn(subject),
        sections=[_data_set(subject, name, result) for name in result["accuracy"]],
        learning=_learning(subject),
        probe_curve=_probe_curve(subject),
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
    section["examples"] = inline_svg(
        lambda: attacked_images(subject, name, eps), f"images of {name} before and after the attack"
    )
    return section


def attacked_images(subject: Subject, name: str, eps: float) -> "Figure":
    """Some images of a data set before and after the paper's PGD."""
    found, classes = examples(subject, name, named_attack("pgd", eps))
    title = f"PGD at eps {eps:.4g}; the title is the prediction, * a wrong one"
    return draw_examples(found, classes, title=title)


def _learning(subject: Subject) -> str | None:
    log = subject.folder / LOG
    return inline_svg(lambda: learning_curves(log), "learning curves") if log.exists() else None


def _probe_curve(subject: Subject) -> str | None:
    curves = probe_curves(subject)
    return inline_svg(lambda: draw_probe(curves), "probe accuracy over epochs") if curves else None
