"""From run folders to cells: mean ± standard deviation (n), the published value, and their difference.

The difference is in units of the pooled spread, √(((n−1)s² + (5−1)s_p²) / (n−1 + 5−1)), with the standard
deviations s of our n trials and s_p of the paper's 5; a single trial has none and does not contribute.
"""

import math
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from intnacl.paper import published, record
from intnacl.paper.attempts import failure, run_folder
from intnacl.paper.run_names import run_name
from intnacl.paper.tables import Column, Row
from intnacl.runs.compare import mean_and_deviation
from intnacl.runs.config import FREE, RunConfig, flatten, from_dict, to_dict
from intnacl.runs.resolve import resolve
from intnacl.runs.result import measured_images

Result = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """A run of the record, done or not."""

    name: str
    config: RunConfig
    result: Result | None
    error: str | None
    departures: list[str]
    """Differences from the paper's stated setting; empty in the paper's setting."""
    choices: list[str]
    """Differences from the recipe in settings that the paper leaves open."""
    command: str
    """The command line of this run alone."""

    @property
    def status(self) -> str:
        """finished, failed or missing."""
        return "finished" if self.result is not None else "failed" if self.error else "missing"

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by kind of stage, over all data sets: {"pretrain", "probe", …, "total"}."""
        times: dict[str, float] = {}
        for stage, seconds in (self.result or {}).get("time_s", {}).items():
            kind = stage.partition(" ")[0]
            times[kind] = times.get(kind, 0.0) + float(seconds)
        return times

    @property
    def machine(self) -> str:
        """The GPU or processor of the run, marked if other runs used it at the same time."""
        hardware = (self.result or {}).get("protocol", {}).get("hardware", {})
        name = str(hardware.get("gpu") or hardware.get("cpu", ""))
        return f"{name}, shared" if hardware.get("shared") else name


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A figure over seeds."""

    runs: dict[str, RecordedRun]
    """Runs by seed."""
    values: dict[str, float]
    """Figures by seed."""
    images: dict[str, int] = field(default_factory=dict)
    """Number of attacked images by seed; empty if every attack was on all test images."""
    dataset: str
    published: published.Value | None
    timed: bool = False
    """True if the figure is a time, to which other work on the machine can only add."""

    @property
    def n(self) -> int:
        """Number of runs that have the figure."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """Mean over the seeds; for times, the shortest."""
        if self.timed:
            return min(self.values.values(), default=None)
        return mean_and_deviation(list(self.values.values()))[0] if self.values else None

    @property
    def sd(self) -> float | None:
        """Standard deviation over the seeds (n − 1); None for fewer than two seeds, and for times."""
        return mean_and_deviation(list(self.values.values()))[1] if self.values and not self.timed else None

    @property
    def difference(self) -> float | None:
        """Our figure minus the paper's, in percentage points."""
        return None if self.mean is None or self.published is None else self.mean - self.published.mean

    @property
    def units(self) -> float | None:
        """The difference in units of the pooled spread; None without a spread."""
        if self.difference is None or self.published is None:
            return None
        spread = pooled(self.spreads)
        return self.difference / spread if spread else None

    @property
    def spreads(self) -> list[tuple[float | None, int]]:
        """Standard deviation and number of trials: ours, and the paper's if it prints the figure."""
        paper = [] if self.published is None else [(self.published.sd, published.TRIALS)]
        return [(self.sd, self.n), *paper]

    @property
    def status(self) -> str:
        """measured, partly (seeds are missing), failed, shared (a time on a shared device) or missing."""
        if self.values:
            return "measured" if self.n == len(self.runs) else "partly"
        found = {run.status for run in self.runs.values()}
        if "failed" in found:
            return "failed"
        return "shared" if self.timed and "finished" in found else "missing"


@dataclass(frozen=True, kw_only=True)
class FilledTable:
    """A table of the record with its cells."""

    key: str
    name: str
    title: str
    rows: Sequence[Row]
    columns: Sequence[Column]
    cells: list[list[Cell]]
    figure: str | None
    x_label: str
    departures: list[str] = field(default_factory=list)
    """Differences of its runs from the paper's setting; empty if any run is in the paper's setting."""
    tiny: bool = False

    @property
    def notice(self) -> str:
        """The heading of its departures."""
        return "A check of the machinery, not of the paper" if self.tiny else "Not the paper's setting"


class Figure(NamedTuple):
    """A figure of a result; None where it is not measured."""

    value: float | None
    images: int | None = None
    """Number of attacked images; None: all of them, or no attack."""


def pooled(spreads: Iterable[tuple[float | None, int]]) -> float | None:
    """Return √(Σ(n−1)s² / Σ(n−1)) over the standard deviations s of n trials each, ignoring missing ones."""
    known = [(count - 1, value) for value, count in spreads if value is not None and count > 1]
    freedom = sum(count for count, _ in known)
    return math.sqrt(sum(count * value**2 for count, value in known) / freedom) if freedom else None


def read_cells(results: Path) -> tuple[list[FilledTable], dict[str, RecordedRun]]:
    """Return every table of a results folder, and every run behind them."""
    kept = record.read(results)
    cells = [cell for table in kept["tables"].values() for row in table["cells"] for cell in row]
    shown = {name for cell in cells for name in cell.values()}
    runs: dict[str, RecordedRun] = {}
    for name, job in kept["jobs"].items():
        if name in shown:
            config, folder = from_dict(job["config"]), run_folder(results, name)
            result, noted = folder.read_result(), failure(folder)
            runs[name] = RecordedRun(
                name=name,
                config=config,
                result=result,
                error=noted["error"] if result is None and noted and noted["given_up"] else None,
                departures=published.departures(config, result),
                choices=published.choices(config),
                command=command(config, Path("RUN") if result else folder.path),
            )
    # In every table, a loss has all seeds of its finished runs, which differ in nothing but the seed.
    setting = {name: run_name(replace(run.config, seed=0)) for name, run in runs.items()}
    trials: dict[str, dict[str, RecordedRun]] = defaultdict(dict)
    for name, run in runs.items():
        if run.result is not None:
            trials[setting[name]][str(run.config.seed)] = run
    others = {name: trials[key] for name, key in setting.items()}
    return [_fill(key, table, runs, others) for key, table in kept["tables"].items()], runs


def _fill(
    key: str,
    table: record.TableRecord,
    runs: Mapping[str, RecordedRun],
    trials: Mapping[str, Mapping[str, RecordedRun]],
) -> FilledTable:
    """Return a table with its cells; an optional column is shown if it has a value or is part of a figure."""
    columns = [Column(**column) for column in table["columns"]]
    cells: list[list[Cell]] = []
    for row in table["cells"]:
        cells.append([])
        for seeds, column in zip(row, columns, strict=True):
            first = next(iter(seeds.values()))
            found = {**trials[first], **{seed: runs[name] for seed, name in seeds.items()}}
            in_order = dict(sorted(found.items(), key=lambda item: int(item[0])))
            cells[-1].append(cell_of(in_order, runs[first].config, column))
    behind = [run for row in cells for cell in row for run in cell.runs.values()]
    shown = [
        j
        for j, column in enumerate(columns)
        if table["figure"] or not column.optional or any(row[j].values for row in cells)
    ] or range(len(columns))
    return FilledTable(
        key=key,
        name=table["name"],
        title=table["title"],
        rows=[Row(**row) for row in table["rows"]],
        columns=[columns[j] for j in shown],
        cells=[[row[j] for j in shown] for row in cells],
        figure=table["figure"],
        x_label=table["x_label"],
        departures=list(dict.fromkeys(reason for run in behind for reason in run.departures))
        if all(run.departures for run in behind)
        else [],
        tiny="tiny" in table["settings"],
    )


def command(config: RunConfig, folder: Path) -> str:
    """Return the command line of this run alone."""
    base = dict(flatten(to_dict(resolve({"dataset": config.dataset}))))
    flags = [
        f"{key}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in flatten(to_dict(config))
        if key not in ("dataset", *FREE) and value != base[key]
    ]
    words = ["intnacl", "run", "--dataset", config.dataset, "--out", str(folder)]
    words += ["--root", config.root] if config.root else []
    return shlex.join([*words, *(["--set", *flags] if flags else [])])


def cell_of(runs: dict[str, RecordedRun], config: RunConfig, column: Column) -> Cell:
    """Return a column's figure over `runs`, which train like `config`, by seed, with the paper's value."""
    dataset, values, images, is_subset = column.dataset or config.dataset, {}, {}, False
    for seed, run in runs.items():
        value, attacked = figure(run.result, dataset, column.metric, column.eps)
        if value is None or not math.isfinite(value):
            continue
        values[seed] = value
        if attacked is not None and run.result is not None:
            images[seed] = attacked
            counts = run.result.get("protocol", {}).get("images", {}).get(dataset, {"test": 0})
            is_subset |= attacked < measured_images(counts)
    comparable = not any(run.departures for run in runs.values())
    return Cell(
        runs=runs,
        values=values,
        images=images if is_subset else {},
        dataset=dataset,
        published=published.find(config, dataset, column.metric, column.eps) if comparable else None,
        timed=column.metric == "minutes",
    )


def figure(result: Result | None, dataset: str, metric: str, eps: float | None = None) -> Figure:
    """Return a figure of a result; among equal attacks on different numbers of images, that on the most.

    `eps` is the attack's radius; None: the first of the run.
    """
    if result is None:
        return Figure(None)
    if metric == "minutes":
        shared = result["protocol"].get("hardware", {}).get("shared")
        seconds = None if shared else result["time_s"].get("pretrain")
        return Figure(None if seconds is None else float(seconds) / 60)
    if metric == "knn":  # the run's own kNN comes first
        return Figure(next((float(r["accuracy"]) for r in result["knn"] if r["dataset"] == dataset), None))
    if eps is None or metric == "clean":
        value = result["accuracy"].get(dataset, {}).get(metric)
        if metric == "clean":
            return Figure(None if value is None else float(value))
        if value is not None:
            return Figure(float(value), result["config"]["evaluation"].get("images"))
        eps = result["config"]["evaluation"]["eps"][0]
    wanted = dataset, metric, eps, "slf"
    rows = [
        row
        for row in result["attacks"]
        if (row["dataset"], row["name"], row["eps"], row.get("protocol", "slf")) == wanted
    ]
    row = max(rows, key=lambda row: int(row["images"]), default=None)
    return Figure(None) if row is None else Figure(float(row["accuracy"]), int(row["images"]))
