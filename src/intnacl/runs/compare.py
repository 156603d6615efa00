"""Losses side by side: runs that differ in the loss alone, over some seeds, as a table and a figure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from intnacl.attacks.named import ATTACK_NAMES
from intnacl.console import print_table, print_warnings
from intnacl.files import write_json
from intnacl.plots.curves import Curve, draw_comparison
from intnacl.plots.style import save_figure
from intnacl.runs.config import RunConfig, from_dict
from intnacl.runs.folder import RunFolder
from intnacl.runs.measure import Say, check, run
from intnacl.runs.page import on_images
from intnacl.runs.pretrain import pretrain
from intnacl.training.ranks import Ranks
from intnacl.training.stop import Stop

Spread = dict[str, Any]
"""`mean`, `sd` (None for one seed) and the `values`, one for each seed."""


def compare(
    configs: Mapping[str, RunConfig], seeds: Sequence[int], folder: Path, here: Ranks, stop: Stop, say: Say
) -> str | None:
    """Run every configuration with every seed in a folder of its own below `folder`; the reason of a stop.

    Many ranks first train all of them: the main one measures alone, and nobody can wait for it that long.
    """
    runs = [(label, replace(config, seed=seed)) for seed in seeds for label, config in configs.items()]
    for label, config in runs if here.world > 1 else ():
        if here.main:
            say(f"{label}, seed {config.seed}")
        check(config)
        reason = pretrain(config, run_folder(folder, label, config.seed), here, stop)
        if reason is not None:
            return reason
    for label, config in runs if here.main else ():
        say(f"{label}, seed {config.seed}")
        reason = run(config, run_folder(folder, label, config.seed), here, stop, say)
        if reason is not None:
            return reason
    return None


def run_folder(folder: Path, label: str, seed: int) -> RunFolder:
    """Where one run of a comparison is."""
    return RunFolder(folder / f"{label}-seed{seed}")


def summarize(folder: Path, labels: Sequence[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Accuracies of finished runs by loss, attack and eps, and their protocol, which they share."""
    results = {label: [_result(run_folder(folder, label, seed)) for seed in seeds] for label in labels}
    first = results[labels[0]][0]
    return {
        "dataset": first["config"]["dataset"],
        "seeds": list(seeds),
        "attacked": on_images(first),
        "losses": {label: _figures(found) for label, found in results.items()},
        "clean_of_attacked": {k: _spread([_clean_of_attacked(one) for one in f]) for k, f in results.items()},
        "difference": _differences(results) if len(labels) == 2 else None,
        "warnings": [
            f"{label}, seed {seed}: {warning}"
            for label, found in results.items()
            for seed, result in zip(seeds, found, strict=True)
            for warning in result["warnings"]
        ],
        "time_s": {k: _spread([one["time_s"]["total"] for one in found]) for k, found in results.items()},
        "protocol": {k: v for k, v in first["protocol"].items() if k not in ("seed", "encoder_sha256")},
    }  # fmt: skip


def write_comparison(folder: Path, labels: Sequence[str], seeds: Sequence[int]) -> None:
    """Write the figure and the numbers of finished runs, and print their table."""
    summary = summarize(folder, labels, seeds)
    drawing, figures = folder / "comparison.png", folder / "comparison.json"
    write_json(figures, summary)
    title = f"{summary['dataset']} under attack, {_over(summary)}"
    save_figure(draw_comparison(accuracy_panels(summary), title), drawing)
    print_comparison(summary)

    def braces(items: Sequence[object]) -> str:
        """Several items as a shell expands them; it takes braces around a single one literally."""
        text = ",".join(map(str, items))
        return f"{{{text}}}" if len(items) > 1 else text

    pages = RunFolder(folder / f"{braces(labels)}-seed{braces(seeds)}").page
    print(f"written: {drawing}, {figures}, {pages}")


def print_comparison(summary: dict[str, Any]) -> None:
    """Attacks and eps as rows, losses as columns."""
    columns = dict(summary["losses"])
    if summary["difference"]:
        columns["difference"] = summary["difference"]
    keys = list(next(iter(columns.values())))
    rows = [
        [_name(key), *(_shown(columns[c][key], signed=c == "difference") for c in columns)] for key in keys
    ]
    print_table(f"{summary['dataset']}: accuracy in percent, {_over(summary)}", ["attack", *columns], rows)
    print_warnings(summary["warnings"])


def accuracy_panels(summary: dict[str, Any]) -> dict[str, dict[str, Curve]]:
    """Return attack -> loss -> accuracy over eps; without attacks, the clean accuracies alone."""
    losses, clean = summary["losses"], summary["clean_of_attacked"]
    attacks = list(dict.fromkeys(_split(key)[0] for key in next(iter(losses.values())) if key != "clean"))
    attacks = [name for name in attacks if name != "worst_case"] or attacks or ["none"]
    panels: dict[str, dict[str, Curve]] = {}
    for attack in attacks:
        curves = panels.setdefault(ATTACK_NAMES.get(attack, attack), {})
        for label, figures in losses.items():
            points = {0.0: clean[label]}
            points |= {_split(k)[1]: v for k, v in figures.items() if k != "clean" and _split(k)[0] == attack}
            curves[label] = [(eps, points[eps]["mean"], points[eps]["sd"] or 0.0) for eps in sorted(points)]
    return panels


def _over(summary: dict[str, Any]) -> str:
    """What its figures are taken over."""
    seeds = summary["seeds"]
    over = f"mean ± sd of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    return over + (f", attacks{summary['attacked']}" if summary["attacked"] else "")


def _result(folder: RunFolder) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(folder.result.read_bytes())
    return result


def _values(result: dict[str, Any]) -> dict[str, float]:
    """ "clean" and "ATTACK EPS" -> accuracy on the run's own data set, for what its configuration asks."""
    config = from_dict(result["config"])
    name, wanted = config.dataset, config.evaluation
    rows = _attacks(result)
    values = {"clean": result["accuracy"][name]["clean"]}
    for attack in dict.fromkeys((*wanted.attacks, *(("fgsm",) if wanted.fgsm_eps else ()))):
        radii = [eps for eps, names in wanted.rounds if attack in names]
        values |= {
            _key(row): row["accuracy"] for row in rows if row["name"] == attack and row["eps"] in radii
        }
    worst = [row for row in rows if row.get("of") == list(wanted.attacks) and row["eps"] in wanted.eps]
    return values | {_key(row): row["accuracy"] for row in worst}


def _attacks(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The attacks on as many images of the run's own data set as its configuration asks."""
    config = from_dict(result["config"])
    name, images = config.dataset, config.evaluation.images
    count = result["protocol"]["images"][name]["test"]
    return [
        row
        for row in result["attacks"]
        if row["dataset"] == name and row["images"] == min(images or count, count)
    ]


def _clean_of_attacked(result: dict[str, Any]) -> float:
    """Where curves over eps begin: the accuracy on the attacked images, which may be some of all."""
    clean = result["accuracy"][result["config"]["dataset"]]["clean"]
    return float(next((row["clean"] for row in _attacks(result)), clean))


def _key(row: Mapping[str, Any]) -> str:
    return f"{row['name']} {row['eps']:.4g}"


def _figures(results: Sequence[dict[str, Any]]) -> dict[str, Spread]:
    values = [_values(result) for result in results]
    return {key: _spread([found[key] for found in values]) for key in values[0]}


def _differences(results: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Spread]:
    """The second loss minus the first, seed by seed."""
    first, second = ([_values(result) for result in found] for found in results.values())
    return {key: _spread([b[key] - a[key] for a, b in zip(first, second, strict=True)]) for key in first[0]}


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean over seeds and the deviation (n − 1), None for one seed."""
    return fmean(values), stdev(values) if len(values) > 1 else None


def _spread(values: list[float]) -> Spread:
    average, deviation = mean_and_deviation(values)
    return {"mean": average, "sd": deviation, "values": values}


def _split(key: str) -> tuple[str, float]:
    attack, eps = key.split()
    return attack, float(eps)


def _name(key: str) -> str:
    if key == "clean":
        return key
    attack, eps = _split(key)
    return f"{ATTACK_NAMES.get(attack, attack)}, eps {eps:.4g}"


def _shown(spread: Spread, *, signed: bool) -> str:
    text = f"{spread['mean']:+.1f}" if signed else f"{spread['mean']:.1f}"
    return text if spread["sd"] is None else f"{text} ± {spread['sd']:.1f}"
