"""The presentation of a run's figures: `report.html`, one self-contained file, and tables on the console."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from intnacl.attacks.named import ATTACK_NAMES, AttackRow, eps_text
from intnacl.console import print_table, print_warnings, show, two_decimals
from intnacl.errors import printable
from intnacl.evaluation.confusion import most_confused
from intnacl.evaluation.hcl_probe import HCL
from intnacl.files import write_text
from intnacl.plots.confusion import READABLE, draw_confusion
from intnacl.plots.curves import (
    Curve,
    draw_comparison,
    draw_learning,
    draw_probe,
    draw_robustness,
    learning_panels,
)
from intnacl.plots.gallery import draw_examples
from intnacl.plots.style import inline_svg
from intnacl.runs.config import loss_name
from intnacl.runs.examples import Examples, load_examples
from intnacl.runs.folder import RunFolder
from intnacl.runs.heads import FINETUNED, PROTOCOL_NAMES
from intnacl.runs.measurement import Measurement, plain
from intnacl.runs.opened import Run, open_run
from intnacl.runs.overview import Overview, write_result
from intnacl.runs.result import (
    ClassFigures,
    CorruptionRow,
    Result,
    attack_rows,
    best_rows,
    clusters_text,
    images_measured_on,
    measured_images,
    of_one_attack,
    own_protocol,
    protocols_of,
    radius_text,
)
from intnacl.training.journal import records

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

CLASS_ROWS = 10  # rows of the tables of classes
IMAGES_PER_PICTURE = 4  # attacked images side by side, as many as fit on a phone


def template_environment(package: str, *, autoescape: bool = True, **options: Any) -> "Environment":
    """Return the environment of a package's templates, in which an undefined name is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(package),
        undefined=StrictUndefined,
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )


def escape_markdown(text: str) -> str:
    """Escape text so that Markdown shows it literally, also inside tables, without any HTML."""
    text = printable(text.replace("\n", " ")).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for character in "\\`*_[]|#":
        text = text.replace(character, f"\\{character}")
    return text


def write_result_and_page(run: Run) -> Overview:
    """Write result and page if everything that the configuration asks for is measured.

    Only one of several measuring processes is here at a time, so that the last one sees all measurements.
    """
    with run.measurements.locked(["result"]):
        found = Overview(run)
        result = write_result(found)
        if result is not None:
            write_text(run.folder.page, render(found, result))
    return found


def render(found: Overview, result: Result) -> str:
    """Return the page. All text is escaped; only our own SVG drawings are inserted as they are."""
    environment = template_environment("intnacl.runs")
    environment.filters |= {"percent": two_decimals, "eps": eps_text}
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=1, ensure_ascii=False)
    run, config = found.run, found.run.config
    probe_curve, log = None, records(run.folder.log)
    panels = learning_panels(log) if log else {}
    learning = [inline_svg(partial(draw_learning, log, title), title) for title in panels]
    if curves := found.probe_curves():
        probe_curve = inline_svg(lambda: draw_probe(curves), "probe accuracy over epochs")
    return environment.get_template("run.html").render(
        title=f"{loss_name(config)} on {config.dataset}",
        config=config,
        result=result,
        attack_names=ATTACK_NAMES,
        heads=attack_heads(result),
        at=radius_text(result),
        measured_on=images_measured_on(result),
        clusters=clusters_text(result),
        knn=found.own_knn(),
        sections=[
            _attack_section(run, name, protocol, rows)
            for name in result["accuracy"]
            for protocol in protocols_of(result, name)
            if (rows := best_rows(result, name, protocol))
        ],
        teacher_section=_teacher_section(run, result),
        learning=learning,
        probe_curve=probe_curve,
        probes=_other_probes(found, result),
        corruptions=result.get("corruptions", []),
        few_labels=result.get("few_labels"),
        classes=[_class_section(name, found) for name, found in result.get("classes", {}).items()],
        protocol_names=PROTOCOL_NAMES,
    )


def _attack_section(run: Run, name: str, protocol: str, rows: Sequence[AttackRow]) -> dict[str, Any]:
    """Return the template's data about attacks on one classifier."""
    own = protocol == run.measurements.own_protocol(name)
    curve = ""
    if rows:
        curve = inline_svg(lambda: draw_robustness(rows), f"accuracy over the attack's eps on {name}")
    title = name if protocol == "slf" else f"{name}, {PROTOCOL_NAMES[protocol]}"
    section: dict[str, Any] = {"dataset": title, "rows": rows, "curve": curve, "examples": []}
    if own and (found := load_examples(run, name)) is not None:
        section["attack"] = _attack_of(found)
        for first in range(0, len(found.tensors["labels"]), IMAGES_PER_PICTURE):
            draw = partial(
                draw_examples, found.tensors, found.classes, shown=slice(first, first + IMAGES_PER_PICTURE)
            )
            title = f"images of {name} before and after the attack, from no. {first + 1}"
            section["examples"].append(inline_svg(draw, title))
    return section


def _class_section(name: str, found: ClassFigures) -> dict[str, Any]:
    """Return the template's data about a data set's classes."""
    names, title = found["names"], f"confusion of the classes of {name}"
    by_class = sorted(
        zip(names, found["accuracy"], found["images"], strict=True),
        key=lambda row: math.inf if row[1] is None else row[1],
    )
    return {
        "dataset": name,
        "balanced": found["balanced_accuracy"],
        "picture": inline_svg(lambda: draw_confusion(found["confusion"], names), title),
        "numbered": len(names) > READABLE,
        "confused": [
            (names[pair.true], names[pair.predicted], pair.taken, 100 * pair.taken / pair.images)
            for pair in most_confused(found["confusion"], CLASS_ROWS)
        ],
        "worst": by_class[:CLASS_ROWS],
        "others": by_class[CLASS_ROWS:],
    }


def _teacher_section(run: Run, result: Result) -> dict[str, Any] | None:
    """Return the template's data about a student and its teacher; None if they have no attack in common.

    They are the accuracies under the common attacks, and the teacher's attacked images.
    """
    folder, name = RunFolder(run.folder.teacher), run.config.dataset
    of_teacher = folder.read_result() if run.config.objective == "distill" else None
    if of_teacher is None or name not in of_teacher["accuracy"]:
        return None
    both = {"teacher": best_rows(of_teacher, name), "student": best_rows(result, name)}
    figures = {who: {(row["name"], row["eps"]): row for row in rows} for who, rows in both.items()}
    shared = [key for key in figures["student"] if key in figures["teacher"] and key[0] != "worst_case"]
    if not shared:
        return None
    panels: dict[str, dict[str, Curve]] = {}
    for attack in dict.fromkeys(attack for attack, _ in shared):
        panels[ATTACK_NAMES[attack]] = {
            who: [(0.0, rows[key]["clean"], 0.0) for key in shared[:1]]
            + [(key[1], rows[key]["accuracy"], 0.0) for key in shared if key[0] == attack]
            for who, rows in figures.items()
        }
    title = f"teacher and student on {name}"
    return {
        "curve": inline_svg(lambda: draw_comparison(panels, ""), title),
        "rows": [(ATTACK_NAMES[attack], eps, *(rows[attack, eps] for rows in figures.values()))
                 for attack, eps in shared],
        "teacher": _attack_section(open_run(folder, device=run.device, images=run.images), name, "slf", []),
        "page": folder.page.relative_to(run.folder.path) if folder.page.exists() else None,
    }  # fmt: skip


def draw_stored(found: Examples) -> "Figure":
    """Draw the images that were stored with an attack."""
    title = f"{_attack_of(found)}; the title is the prediction, * a wrong one"
    return draw_examples(found.tensors, found.classes, title=title)


def _attack_of(found: Examples) -> str:
    return f"{ATTACK_NAMES[found.attack['name']]} at eps {eps_text(found.attack['eps'])}"


def _other_probes(found: Overview, result: Result) -> list[dict[str, Any]]:
    """Return every linear probe with its `kind`, for the template; no row if all are the run's own.

    The kind names the protocol and the settings in which a probe differs from the run's own.
    """
    config = found.run.config
    usual = {"slf": config.probe, "hcl": replace(HCL, seed=config.probe.seed), "alf": config.alf}
    rows = []
    for row in result["probes"]:
        own = own_protocol(result, row["dataset"])
        if row["protocol"] in FINETUNED:
            rows.append({**row, "kind": "the run's own"})
            continue
        settings = plain({"probe": asdict(usual[row["protocol"]])})["probe"]  # type: ignore[call-overload]
        kind = [PROTOCOL_NAMES[row["protocol"]]] if row["protocol"] != own else []
        kind += [f"{key} = {value}" for key, value in row["probe"].items() if value != settings.get(key)]
        rows.append({**row, "kind": ", ".join(kind) or "the run's own"})
    return rows if any(row["kind"] != "the run's own" for row in rows) else []


def print_result(folder: RunFolder) -> None:
    """Print the accuracies of a finished run, and the paths of its files."""
    result = cast(Result, json.loads(folder.result.read_bytes()))
    at = radius_text(result)
    title = f"accuracy in percent of {images_measured_on(result)}" + (f"; attacks at {at}" if at else "")
    title += f"; {clusters}" if (clusters := clusters_text(result)) else ""
    print_table(title, ["data set", "clean", *attack_heads(result)], accuracy_rows(result))
    if few := result.get("few_labels"):
        title = f"from {100 * few['labels']:g} % of the labels, {few['images']['train']:,} images, in percent"
        rows = [["fine-tuned", two_decimals(few["finetuned"])]]
        rows += [["linear probe, frozen encoder", two_decimals(few["probe"])]]
        print_table(title, [few["dataset"], "accuracy"], rows)
    attacks = [
        row for name in result["accuracy"] for row in attack_rows(result, name) if not of_one_attack(row)
    ]
    shown = result["protocol"].get("accuracy", {"fgsm": "fgsm", "pgd": "pgd"})
    others = {row["name"] for row in attacks} - {*shown.values(), "worst_case"}
    if others or len({row["eps"] for row in attacks}) > 1:
        for name in result["accuracy"]:
            print_attacks(name, [row for row in attacks if row["dataset"] == name])
    print_warnings(result["warnings"])
    show(f"written: {folder.result}, {folder.page}")


def attack_heads(result: Result) -> tuple[str, str]:
    """Return the names of the attacks in a result's accuracies: FGSM, and PGD or PGD tuned."""
    of = result["protocol"].get("accuracy", {})  # earlier versions only had the paper's attacks
    return ATTACK_NAMES["fgsm"], ATTACK_NAMES[of.get("pgd", "pgd")]


def accuracy_rows(result: Result) -> list[list[str]]:
    """Return a row for each data set: its name, its clean accuracy, and those under `attack_heads`."""
    return [
        [name, *(two_decimals(figure) for figure in (row["clean"], row["fgsm"], row["pgd"]))]
        for name, row in result["accuracy"].items()
    ]


def print_attacks(dataset: str, rows: Sequence[AttackRow]) -> None:
    """Print attacks as rows and eps as columns, grouped by number of images, with the lowest worst case."""
    eps = sorted({row["eps"] for row in rows})
    table: dict[tuple[str, int], dict[float, float]] = {}
    for row in rows:
        table.setdefault(("none", row["images"]), dict.fromkeys(eps, row["clean"]))
        found = table.setdefault((row["name"], row["images"]), {})
        found[row["eps"]] = min(row["accuracy"], found.get(row["eps"], row["accuracy"]))
    lines = [
        [ATTACK_NAMES.get(name, name), f"{images:,}", *(two_decimals(found.get(radius)) for radius in eps)]
        for (name, images), found in sorted(table.items(), key=lambda item: -item[0][1])
    ]
    print_table(f"{dataset}: accuracy in percent over eps", ["attack", "images", *map(eps_text, eps)], lines)


def print_corruptions(rows: Iterable[CorruptionRow]) -> None:
    """Print the accuracy on each corruption, and the mean if all corruptions are measured."""
    for row in rows:
        title = f"{row['dataset']}, {PROTOCOL_NAMES[row['protocol']]}: percent of {row['images']:,} images"
        lines = [
            [name.replace("_", " "), two_decimals(value)] for name, value in row["by_corruption"].items()
        ]
        if row["accuracy"] is not None:
            lines.append(["mean of all", two_decimals(row["accuracy"])])
        print_table(f"{title}, means of five severities", ["corruption", "accuracy"], lines)


def print_probes(measured: Iterable[Measurement]) -> None:
    """Print a line for each probe: its accuracy in the last epoch, and in the best if there are epochs."""
    rows = []
    for one in measured:
        figures = one.figures
        found = (figures["accuracy"], figures.get("best_accuracy"), figures.get("train_accuracy"))
        rows.append(
            [
                one.dataset,
                f"{measured_images(figures['images']):,}",
                *map(two_decimals, found),
                f"{one.time_s:.1f}",
            ]
        )
    heads = ["data set", "images", "accuracy", "best epoch", "training images", "seconds"]
    print_table("linear probe on frozen features, percent", heads, rows)
