"""Lists of runs: sorted, filtered, with the best run named, and two runs compared side by side."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from intnacl.attacks.named import ATTACK_NAMES, eps_text
from intnacl.console import print_table, print_warnings, show, two_decimals
from intnacl.errors import InputError, check_choice
from intnacl.runs.config import SETTINGS, changed_settings
from intnacl.runs.folder import RunFolder
from intnacl.runs.result import best_rows
from intnacl.runs.summary import SPLIT_NAMES, RunSummary, read_runs, summarize_run

FIGURES = ("clean", "fgsm", "pgd", "knn")
FILTER_EXAMPLES = "clean>=60, loss=intnacl*, train.epochs=100, or a part of the run's name"


@dataclass(frozen=True, kw_only=True)
class RunColumn:
    """A column of the list: its heading, and a run's value there."""

    head: str
    value: Callable[[RunSummary], str | float | None]
    is_text: bool = False
    falling: bool = False
    """Sorted with the largest first."""


COLUMNS = {
    "run": RunColumn(head="run", value=lambda run: run.name, is_text=True),
    "loss": RunColumn(head="loss", value=lambda run: run.loss, is_text=True),
    "data": RunColumn(head="data", value=lambda run: run.data, is_text=True),
    "progress": RunColumn(head="progress", value=lambda run: run.progress, is_text=True),
    "split": RunColumn(head="images", value=lambda run: run.split and SPLIT_NAMES[run.split], is_text=True),
    "attacks": RunColumn(head="eps", value=lambda run: run.attacks, is_text=True),
    "seed": RunColumn(head="seed", value=lambda run: run.config.seed),
    "epochs": RunColumn(head="epochs", value=lambda run: run.epochs_done, falling=True),
    "clean": RunColumn(head="clean", value=lambda run: run.clean, falling=True),
    "fgsm": RunColumn(head="FGSM", value=lambda run: run.fgsm, falling=True),
    "pgd": RunColumn(head="PGD", value=lambda run: run.pgd, falling=True),
    "knn": RunColumn(head="kNN", value=lambda run: run.knn, falling=True),
    "minutes": RunColumn(head="minutes", value=lambda run: run.minutes),
}
SORTS = {**COLUMNS, "changed": RunColumn(head="changed", value=lambda run: run.changed, falling=True)}
COMPARED = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
            ">=": operator.ge}  # fmt: skip


def list_command(
    place: Path,
    filters: Sequence[str],
    sort: str,
    reverse: bool,
    pair: Sequence[str],
    html: bool,
    out: Path | None,
) -> None:
    """List the runs in a folder, or compare two of them, and write their page on request."""
    check_choice("sort", sort, SORTS)
    if pair:
        if len(pair) != 2:
            raise InputError(f"--compare {' '.join(pair)}: give exactly two runs.")
        compare_two(*(_named_run(place, name) for name in pair))
        return
    runs = select(read_runs(place, lambda text: print_warnings([text])), filters)
    runs = sort_runs(runs, sort, reverse=reverse)
    print_runs(runs, place)
    for line in best_runs(runs, sort if sort in FIGURES else "clean"):
        show(line)
    if html or out is not None:
        from intnacl.runs.listing_page import write_listing

        out = out or place / "runs.html"
        write_listing(runs, place, out)
        show(f"written: {out}")


def cell_text(run: RunSummary, name: str) -> str:
    """Return the printed text of a run's value in a column."""
    if name == "epochs":
        return run.epochs
    value = COLUMNS[name].value(run)
    if name == "minutes" and value is not None:
        return f"{value:.1f}"
    return two_decimals(value) if name in FIGURES else "–" if value is None else str(value)  # type: ignore[arg-type]


def sort_runs(runs: Sequence[RunSummary], column: str, *, reverse: bool = False) -> list[RunSummary]:
    """Return the runs sorted by a column: accuracies from the highest, names and times from the lowest.

    Runs without a value come last.
    """
    key = SORTS[column].value
    known = [run for run in runs if key(run) is not None]
    known.sort(key=key, reverse=SORTS[column].falling != reverse)  # type: ignore[arg-type]
    return known + [run for run in runs if key(run) is None]


def select(runs: Sequence[RunSummary], filters: Sequence[str]) -> list[RunSummary]:
    """Return the runs that pass all filters, each KEY=VALUE, KEY>=VALUE and so on, or a part of a name.

    A key is a column or the dotted name of a setting; a text may hold the wildcards * and ?. A run without a
    value does not pass.
    """
    for text in filters:
        found = re.fullmatch(r"([\w.]+)\s*(!=|<=|>=|=|<|>)\s*(.*)", text)
        passes = _filter(*found.groups()) if found else _name_contains(text)
        kept = [run for run in runs if passes(run)]
        if not kept:
            raise InputError(
                f"filter={text!r} leaves none of {len(runs)} runs: give another, such as {FILTER_EXAMPLES}."
            )
        runs = kept
    return list(runs)


def _name_contains(part: str) -> Callable[[RunSummary], bool]:
    return lambda run: part in run.name


def _filter(key: str, sign: str, text: str) -> Callable[[RunSummary], bool]:
    """Return the predicate of a filter."""
    if key not in COLUMNS:
        check_choice("filter", key, [*COLUMNS, *SETTINGS])

    def passes(run: RunSummary) -> bool:
        value: Any = COLUMNS[key].value(run) if key in COLUMNS else run.settings[key]
        if value is None:
            return text.lower() == "none" and sign == "="
        if isinstance(value, int | float) and not isinstance(value, bool):
            return bool(COMPARED[sign](value, wanted))
        if sign not in ("=", "!="):
            raise InputError(
                f"filter={f'{key}{sign}{text}'!r}: {key} is a text, so that only = and != apply."
            )
        plain = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        return fnmatchcase(plain.lower(), text.lower()) == (sign == "=")

    try:
        from intnacl.runs.config import number

        wanted: float | str = number(text)
    except ValueError:
        wanted = text
    return passes


def columns_of(runs: Sequence[RunSummary]) -> tuple[list[str], str]:
    """Return the columns that a list of runs needs, and a text with the values that all runs share.

    A column without values is left out, and so is a text column in which all runs agree.
    """
    used, shared = [], []
    for name, column in COLUMNS.items():
        texts = {cell_text(run, name) for run in runs}
        if name != "run" and column.is_text and len(texts) == 1 and len(runs) > 1:
            shared += [f"{column.head}: {text}" for text in texts - {"–"}]
        elif texts != {"–"}:
            used.append(name)
    return used, ", ".join(shared)


def heading(runs: Sequence[RunSummary]) -> str:
    """Return the number of runs, and of unfinished ones among them, as a text."""
    unfinished = sum(run.progress != "finished" for run in runs)
    count = f"{len(runs)} run{'s' * (len(runs) != 1)}"
    return count + (f" ({unfinished} unfinished)" if unfinished else "")


def print_runs(runs: Sequence[RunSummary], place: Path) -> None:
    """Print a row for each run."""
    used, shared = columns_of(runs)
    print_table(
        "; ".join([f"{heading(runs)} in {place}", *filter(None, [shared]), "accuracies in percent"]),
        [COLUMNS[name].head for name in used],
        [[cell_text(run, name) for name in used] for run in runs],
        text=sum(COLUMNS[name].is_text for name in used),
        whole=True,
    )


def best_runs(runs: Sequence[RunSummary], figure: str) -> list[str]:
    """Return a sentence about the best run by a figure, for each group that was measured alike.

    If a data set has held-out figures, only these count: a run chosen as the best on test images looks better
    there than it would on other images.
    """
    groups: dict[tuple[str, int, str | None], list[RunSummary]] = {}
    for run in runs:
        if getattr(run, figure) is not None:
            attacks = run.attacks if figure in ("fgsm", "pgd") else None
            groups.setdefault((run.data, run.config.holdout, attacks), []).append(run)
    with_holdout = {data for data, holdout, _ in groups if holdout}
    lines = []
    for (data, holdout, attacks), group in groups.items():
        if len(group) < 2 or (data in with_holdout and not holdout):
            continue
        best = max(group, key=lambda run: getattr(run, figure))
        by = f"{COLUMNS[figure].head} at {attacks}" if attacks else COLUMNS[figure].head
        on = f"{holdout:,} held-out training images" if holdout else "test images"
        line = f"best of {len(group)} on {data} by {by} on {on}: {best.name}, {getattr(best, figure):.2f} %"
        if not holdout:
            line += " (chosen on the images that it is measured on, which flatters it: use --holdout instead)"
        lines.append(line)
    return lines


# ---- two runs side by side ---------------------------------------------------------------------------------


def _named_run(place: Path, name: str) -> RunSummary:
    """Return the run of this name in the folder `place`, or at this path."""
    for path in (place / name, Path(name)):
        if (path / "config.json").is_file():
            return summarize_run(RunFolder(path), place if path.is_relative_to(place) else None)
    raise InputError(f"--compare: there is no run {name!r}, neither in {place} nor at that path.")


def compare_two(one: RunSummary, two: RunSummary) -> None:
    """Print the settings in which two runs differ, and their figures side by side."""
    changed = changed_settings(one.config, two.config)
    rows = [[key, *map(_setting_text, values)] for key, values in changed.items()]
    if rows:
        print_table("settings that differ", ["setting", one.name, two.name], rows, text=3)
    else:
        show(f"{one.name} and {two.name} have the same settings.")
    lines = []
    for label, (first, second) in side_by_side(one, two).items():
        form = "{:.0f}" if label == "epochs" else "{:.2f}"
        cells = ["–" if value is None else form.format(value) for value in (first, second)]
        both = first is not None and second is not None
        lines.append([label, *cells, f"{second - first:+.2f}" if both else "–"])  # type: ignore[operator]
    splits = {SPLIT_NAMES[run.split] for run in (one, two) if run.split}
    on = f" of {splits.pop()} images" if len(splits) == 1 else ""
    print_table(f"accuracies in percent{on}", ["figure", one.name, two.name, "difference"], lines)
    print_warnings(_caveats(one, two))


def side_by_side(one: RunSummary, two: RunSummary) -> dict[str, tuple[float | None, float | None]]:
    """Return label -> figures of two runs: each data set clean, under attack and by kNN, then the times."""
    found = [_all_figures(run) for run in (one, two)]
    labels = dict.fromkeys(label for figures in found for label in figures)
    times = {label: None for label in labels if label in ("epochs", "minutes")}
    ordered = [*(label for label in labels if label not in times), *times]
    return {label: (found[0].get(label), found[1].get(label)) for label in ordered}


def _all_figures(run: RunSummary) -> dict[str, float]:
    own = run.data
    figures: dict[str, float | None] = {f"{own}, clean": run.clean}
    if run.result is not None:
        for dataset, row in run.result["accuracy"].items():
            figures[f"{dataset}, clean"] = row["clean"]
            for attack in best_rows(run.result, dataset):
                name = ATTACK_NAMES.get(attack["name"], attack["name"])
                key = f"{dataset}, {name} at {eps_text(attack['eps'])}, {attack['images']:,} images"
                figures[key] = attack["accuracy"]
    figures |= {f"{own}, kNN": run.knn, "epochs": float(run.epochs_done), "minutes": run.minutes}
    return {label: value for label, value in figures.items() if value is not None}


def _setting_text(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _caveats(one: RunSummary, two: RunSummary) -> list[str]:
    """Return the reasons for which figures of two runs should not be compared."""
    found = []
    if {one.split, two.split} == {"test", "holdout"}:
        found.append("one run is measured on test images, the other on held-out images: do not compare them.")
    elif one.split == "holdout" and one.config.holdout != two.config.holdout:
        found.append("the runs hold out different images, so their accuracies are not on the same images.")
    results = [run.result for run in (one, two) if run.result is not None]
    if len(results) == 2:
        sums = [result["protocol"].get("checksums", {}) for result in results]
        if other := sorted(
            name for name in sums[0].keys() & sums[1].keys() if sums[0][name] != sums[1][name]
        ):
            found.append(f"{', '.join(other)}: images or labels differ between the runs.")
        machines = [result["protocol"].get("hardware", {}) for result in results]
        if any(machine.get("shared") for machine in machines) or len(
            {str(machine.get("gpu", machine.get("cpu"))) for machine in machines}
        ) > 1:  # fmt: skip
            found.append("the minutes are of different or of shared hardware.")
    return found
