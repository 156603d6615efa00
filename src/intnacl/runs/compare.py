"""Losses side by side: runs that differ in the loss alone, over some seeds, as a table and a figure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypedDict

from intnacl.attacks.named import ATTACK_NAMES, eps_text
from intnacl.console import print_table, print_warnings, show
from intnacl.files import write_json
from intnacl.plots.curves import Curve, draw_comparison
from intnacl.plots.style import save_figure
from intnacl.runs.config import RunConfig, from_dict
from intnacl.runs.folder import RunFolder
from intnacl.runs.images import MeasuredSplit, RunImages
from intnacl.runs.pretrain import pretrain
from intnacl.runs.resolve import teacher_of
from intnacl.runs.result import Result, attack_rows, measured_images, on_images
from intnacl.runs.stages import Say, check, train_and_measure
from intnacl.training.ranks import Ranks
from intnacl.training.stop import Stop

TEACHER = "teacher"  # the label of teachers beside their students


class Spread(TypedDict):
    """A figure over runs that differ in the seed alone."""

    mean: float
    sd: float | None
    """None for one seed."""
    values: list[float]
    """One for each seed."""


class Comparison(TypedDict):
    """The content of `comparison.json`. Accuracies have the keys "clean" and "ATTACK EPS"."""

    dataset: str
    split: MeasuredSplit
    seeds: list[int]
    attacked: str
    """ " on 40 images" if fewer than all test images were attacked, else empty."""
    losses: dict[str, dict[str, Spread]]
    """Loss -> accuracies in percent."""
    clean_of_attacked: dict[str, Spread]
    """Loss -> clean accuracy on the attacked images, at which curves over eps begin."""
    difference: dict[str, Spread] | None
    """The second loss minus the first, seed by seed, if there are two losses."""
    warnings: list[str]
    time_s: dict[str, Spread]
    protocol: dict[str, Any]


def compare(
    configs: Mapping[str, RunConfig], seeds: Sequence[int], folder: Path, here: Ranks, stop: Stop, say: Say
) -> str | None:
    """Run every configuration with every seed in its own folder below `folder`; return the reason of a stop.

    With several ranks, all runs are trained first: only the main rank measures, and the other ranks would
    time out waiting for it.
    """
    runs = [
        (label, _with_teacher_of_seed(replace(config, seed=seed), folder))
        for seed in seeds
        for label, config in configs.items()
    ]
    images = RunImages(runs[0][1])  # the same for all runs
    for label, config in runs if here.world > 1 else ():
        if here.main:
            say(f"{label}, seed {config.seed}")
        check(config, images)
        reason = pretrain(config, run_folder(folder, label, config.seed), here, stop, images)
        if reason is not None:
            return reason
    for label, config in runs if here.main else ():
        say(f"{label}, seed {config.seed}")
        one = run_folder(folder, label, config.seed)
        reason = train_and_measure(config, one, here, stop, say, images)
        if reason is not None:
            return reason
    return None


def with_teacher(config: RunConfig) -> dict[str, RunConfig]:
    """Return the configurations of a distillation that names no teacher and of its teacher, by label."""
    return {TEACHER: teacher_of(config), "student": config}


def _with_teacher_of_seed(config: RunConfig, folder: Path) -> RunConfig:
    """Return the configuration, with the teacher of its seed if it is a distillation that names none."""
    if config.objective != "distill" or config.distill.teacher is not None:
        return config
    teacher = str(run_folder(folder, TEACHER, config.seed).path.absolute())
    return replace(config, distill=replace(config.distill, teacher=teacher))


def run_folder(folder: Path, label: str, seed: int) -> RunFolder:
    """Return the folder of one run of a comparison."""
    return RunFolder(folder / f"{label}-seed{seed}")


def write_comparison(folder: Path, labels: Sequence[str], seeds: Sequence[int]) -> None:
    """Write the numbers and the figure of finished runs, and print their table."""
    summary = summarize(folder, labels, seeds)
    drawing, figures = folder / "comparison.png", folder / "comparison.json"
    write_json(figures, summary)
    over = f"mean ± sd of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    over += f", attacks{summary['attacked']}" if summary["attacked"] else ""
    over += ", held-out training images" if summary["split"] == "holdout" else ""
    title = f"{summary['dataset']} under attack, {over}"
    save_figure(draw_comparison(accuracy_panels(summary), title), drawing)

    columns = dict(summary["losses"])
    if summary["difference"]:
        columns["difference"] = summary["difference"]
    rows = []
    for key in next(iter(columns.values())):
        attack, eps = (key, None) if key == "clean" else _attack_and_eps(key, summary)
        cells = [attack if eps is None else f"{attack}, eps {eps_text(eps)}"]
        for column, spreads in columns.items():
            middle, deviation = spreads[key]["mean"], spreads[key]["sd"]
            text = f"{middle:+.1f}" if column == "difference" else f"{middle:.1f}"
            cells.append(text if deviation is None else f"{text} ± {deviation:.1f}")
        rows.append(cells)
    print_table(f"{summary['dataset']}: accuracy in percent, {over}", ["attack", *columns], rows)
    print_warnings(summary["warnings"])
    pages = RunFolder(folder / f"{_braces(labels)}-seed{_braces(seeds)}").page
    show(f"written: {drawing}, {figures}, {pages}")


def _braces(items: Sequence[object]) -> str:
    """Write items as a shell's brace expansion; a single item, which it would not expand, without braces."""
    text = ",".join(map(str, items))
    return f"{{{text}}}" if len(items) > 1 else text


def summarize(folder: Path, labels: Sequence[str], seeds: Sequence[int]) -> Comparison:
    """Return the accuracies of finished runs by loss, attack and eps, and their common protocol."""
    results: dict[str, list[Result]] = {
        label: [json.loads(run_folder(folder, label, seed).result.read_bytes()) for seed in seeds]
        for label in labels
    }
    first = results[labels[0]][0]
    accuracies = {
        label: [configured_accuracies(result) for result in found] for label, found in results.items()
    }
    difference = None
    if len(labels) == 2:
        one, two = accuracies.values()
        pairs = [(a, b) for (a, _), (b, _) in zip(one, two, strict=True)]
        difference = {key: _spread([b[key] - a[key] for a, b in pairs]) for key in pairs[0][0]}
    return {
        "dataset": first["config"]["dataset"],
        "split": "holdout" if first["config"].get("holdout") else "test",
        "seeds": list(seeds),
        "attacked": on_images(first),
        "losses": {
            label: {key: _spread([values[key] for values, _ in found]) for key in found[0][0]}
            for label, found in accuracies.items()
        },
        "clean_of_attacked": {k: _spread([clean for _, clean in found]) for k, found in accuracies.items()},
        "difference": difference,
        "warnings": [
            f"{label}, seed {seed}: {warning}"
            for label, found in results.items()
            for seed, result in zip(seeds, found, strict=True)
            for warning in result["warnings"]
        ],
        "time_s": {k: _spread([one["time_s"]["total"] for one in found]) for k, found in results.items()},
        "protocol": {k: v for k, v in first["protocol"].items() if k not in ("seed", "encoder_sha256")},
    }


def configured_accuracies(result: Result) -> tuple[dict[str, float], float]:
    """Return the accuracies that a run is configured to measure on its own data set, by their key.

    The second value is the clean accuracy on the attacked images, which may be fewer than all.
    """
    config = from_dict(result["config"])
    name, wanted = config.dataset, config.evaluation
    tested = measured_images(result["protocol"]["images"][name])
    count = min(wanted.images or tested, tested)
    rows = [row for row in attack_rows(result, name) if row["images"] == count]
    by_radius = sorted(rows, key=lambda row: row["eps"])
    clean = result["accuracy"][name]["clean"]
    asked = []
    for attack in dict.fromkeys((*wanted.attacks, *(name for _, names in wanted.rounds for name in names))):
        radii = [eps for eps, names in wanted.rounds if attack in names]
        asked += [row for row in by_radius if row["name"] == attack and row["eps"] in radii]
    asked += [row for row in by_radius if row.get("of") == list(wanted.attacks) and row["eps"] in wanted.eps]
    values = {"clean": clean} | {f"{row['name']} {row['eps']:.4g}": row["accuracy"] for row in asked}
    return values, rows[0]["clean"] if rows else clean


def accuracy_panels(summary: Comparison) -> dict[str, dict[str, Curve]]:
    """Return attack -> loss -> accuracy over eps; only the clean accuracies if there are no attacks."""
    keys = [key for key in next(iter(summary["losses"].values())) if key != "clean"]
    attacks = list(dict.fromkeys(_attack_and_eps(key, summary)[0] for key in keys))
    worst = ATTACK_NAMES["worst_case"]
    panels: dict[str, dict[str, Curve]] = {}
    for attack in [name for name in attacks if name != worst] or attacks or [ATTACK_NAMES["none"]]:
        curves = panels.setdefault(attack, {})
        for label, figures in summary["losses"].items():
            points = {0.0: summary["clean_of_attacked"][label]}
            for key in keys:
                name, eps = _attack_and_eps(key, summary)
                if name == attack:
                    points[eps] = figures[key]
            curves[label] = [(eps, points[eps]["mean"], points[eps]["sd"] or 0.0) for eps in sorted(points)]
    return panels


def _attack_and_eps(key: str, summary: Comparison) -> tuple[str, float]:
    """Split the key of an accuracy under attack into the attack's display name and eps.

    The key holds four digits of eps, the protocol all of them.
    """
    attack, text = key.split()
    whole = (settings["eps"] for settings in summary["protocol"]["attacks"])
    eps = next((eps for eps in whole if f"{eps:.4g}" == text), float(text))
    return ATTACK_NAMES.get(attack, attack), eps


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean over seeds and the standard deviation (n − 1), which is None for one seed."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def _spread(values: list[float]) -> Spread:
    average, deviation = mean_and_deviation(values)
    return {"mean": average, "sd": deviation, "values": values}
