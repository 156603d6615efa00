"""From run folders to cells: mean ± deviation (n), the published value, and their difference.

The difference is in units of the pooled spread, √(((n−1)s² + (5−1)s_p²) / (n−1 + 5−1)) with the deviations s
of our n trials and s_p of the paper's 5; a single trial has no deviation and adds nothing to the pool.
"""

import math
import shlex
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from intnacl.paper import published, record
from intnacl.paper.attempts import failure, read_result, run_folder
from intnacl.paper.published import choices, departures
from intnacl.paper.run_names import run_name
from intnacl.runs.config import FREE, RunConfig, flatten, from_dict, resolve, to_dict
from intnacl.runs.pretrain import RESULT


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of the record, done or not."""

    name: str
    config: RunConfig
    result: dict[str, Any] | None
    error: str | None
    departures: list[str]
    """From what the paper states; none: its setting."""
    choices: list[str]
    command: str

    @property
    def status(self) -> str:
        """finished, failed or missing."""
        return "finished" if self.result is not None else "failed" if self.error else "missing"

    @property
    def seconds(self) -> dict[str, float]:
        """Of each kind of stage, all data sets together, and in all: {"pretrain", "probe", …, "total"}."""
        times: dict[str, float] = {}
        for stage, seconds in (self.result or {}).get("time_s", {}).items():
            kind = stage.partition(" ")[0]
            times[kind] = times.get(kind, 0.0) + float(seconds)
        return times

    @property
    def machine(self) -> str:
        """The GPU it was done on, or the processor, and whether other runs used it at the same time."""
        hardware = (self.result or {}).get("protocol", {}).get("hardware", {})
        name = str(hardware.get("gpu") or hardware.get("cpu", ""))
        return f"{name}, shared" if hardware.get("shared") else name


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A figure over seeds."""

    runs: dict[str, Run]
    """By seed."""
    values: dict[str, float]
    images: dict[str, int] = field(default_factory=dict)
    """How many were attacked for each seed; empty where no attack was on fewer than all test images."""
    dataset: str
    published: published.Value | None
    timed: bool = False
    """Whether the figure is a time: other work on the machine only ever adds to it."""

    @property
    def n(self) -> int:
        """Runs that have the figure."""
        return len(self.values)

    @property
    def mean(self) -> float | None:
        """Over the seeds that are there; of times, the least."""
        typical = min if self.timed else statistics.fmean
        return typical(self.values.values()) if self.values else None

    @property
    def sd(self) -> float | None:
        """Deviation over the seeds (n − 1); None for fewer than two, and for times."""
        return statistics.stdev(self.values.values()) if self.n > 1 and not self.timed else None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, in percentage points."""
        return None if self.mean is None or self.published is None else self.mean - self.published.mean

    @property
    def units(self) -> float | None:
        """The difference in units of the pooled spread; None where there is no spread."""
        if self.difference is None or self.published is None:
            return None
        spread = pooled(self.spreads)
        return self.difference / spread if spread else None

    @property
    def spreads(self) -> list[tuple[float | None, int]]:
        """Deviation and number of trials: ours, and the paper's where it prints the figure."""
        paper = [] if self.published is None else [(self.published.sd, published.TRIALS)]
        return [(self.sd, self.n), *paper]

    @property
    def status(self) -> str:
        """measured, partly (some seeds are missing), failed, shared (a time that says nothing) or missing."""
        if self.values:
            return "measured" if self.n == len(self.runs) else "partly"
        found = {run.status for run in self.runs.values()}
        if "failed" in found:
            return "failed"
        return "shared" if self.timed and "finished" in found else "missing"


@dataclass(frozen=True, kw_only=True)
class View:
    """A table of the record with its cells."""

    key: str
    name: str
    title: str
    rows: list[dict[str, Any]]
    columns: list[dict[str, Any]]
    cells: list[list[Cell]]
    figure: str | None
    x_label: str
    departures: list[str] = field(default_factory=list)
    """What makes it another setting than the paper's."""
    tiny: bool = False

    @property
    def notice(self) -> str:
        """What it is where it is not the paper's setting."""
        return "A check of the machinery, not of the paper" if self.tiny else "Not the paper's setting"


def pooled(spreads: Iterable[tuple[float | None, int]]) -> float | None:
    """√(Σ(n−1)s² / Σ(n−1)) over the deviations s of n trials that there are."""
    parts = [(count - 1, value) for value, count in spreads if value is not None and count > 1]
    freedom = sum(count for count, _ in parts)
    return math.sqrt(sum(count * value**2 for count, value in parts) / freedom) if freedom else None


def collect(results: Path) -> tuple[list[View], dict[str, Run]]:
    """Every table of a results folder, and every run behind them."""
    kept = record.read(results)
    cells = [cell for table in kept["tables"].values() for row in table["cells"] for cell in row]
    shown = {name for cell in cells for name in cell.values()}
    runs = {name: _run(results, name, job) for name, job in kept["jobs"].items() if name in shown}
    trials = _trials(runs.values())
    return [_view(key, table, runs, trials) for key, table in kept["tables"].items()], runs


def _trials(runs: Collection[Run]) -> dict[str, dict[str, Run]]:
    """For each run the finished ones that differ from it in their seeds alone: name -> seed -> run."""
    alike: dict[str, dict[str, Run]] = defaultdict(dict)
    setting = {run.name: run_name(replace(run.config, seed=0)) for run in runs}
    for run in runs:
        if run.result is not None:
            alike[setting[run.name]][str(run.config.seed)] = run
    return {name: alike[key] for name, key in setting.items()}


def _run(results: Path, name: str, job: Mapping[str, Any]) -> Run:
    config = from_dict(job["config"])
    folder = run_folder(results, name)
    result, noted = read_result(folder / RESULT), failure(folder)
    error = noted["error"] if result is None and noted and noted["given_up"] else None
    return Run(
        name=name, config=config, result=result, error=error, departures=departures(config, result),
        choices=choices(config), command=command(config, Path("RUN") if result else folder),
    )  # fmt: skip


def command(config: RunConfig, folder: Path) -> str:
    """The command line that does this run alone."""
    start = to_dict(resolve({"dataset": config.dataset}))
    base = dict(flatten(start))
    keys = ("dataset", *FREE)
    changed = [
        (key, value) for key, value in flatten(to_dict(config)) if key not in keys and value != base[key]
    ]
    flags = [f"{key}={','.join(map(str, v)) if isinstance(v, list) else v}" for key, v in changed]
    words = ["intnacl", "run", "--dataset", config.dataset, "--out", str(folder)]
    words += ["--root", config.root] if config.root else []
    return shlex.join([*words, *(["--set", *flags] if flags else [])])


def _view(
    key: str, table: Mapping[str, Any], runs: Mapping[str, Run], trials: Mapping[str, dict[str, Run]]
) -> View:
    def cell(seeds: Mapping[str, str], column: Mapping[str, Any]) -> Cell:
        first = next(iter(seeds.values()))
        asked = {seed: runs[name] for seed, name in seeds.items()}
        every = trials[first] | asked  # also the seeds that another table asked for
        return cell_of(dict(sorted(every.items(), key=lambda item: int(item[0]))), runs[first].config, column)

    cells = [
        [cell(seeds, column) for seeds, column in zip(row, table["columns"], strict=True)]
        for row in table["cells"]
    ]
    every = [run for row in cells for cell in row for run in cell.runs.values()]
    reasons = dict.fromkeys(reason for run in every for reason in run.departures)
    shown = _shown(table, cells)
    return View(
        key=key, cells=[[row[j] for j in shown] for row in cells], tiny="tiny" in table["settings"],
        columns=[table["columns"][j] for j in shown],
        departures=list(reasons) if all(run.departures for run in every) else [],
        **{name: table[name] for name in ("name", "title", "rows", "figure", "x_label")},
    )  # fmt: skip


def _shown(table: Mapping[str, Any], cells: list[list[Cell]]) -> list[int]:
    """The columns that are shown: an optional one only with a value, unless a figure needs its place."""
    columns = table["columns"]
    wanted = [
        j
        for j, column in enumerate(columns)
        if table["figure"] or not column["optional"] or any(row[j].values for row in cells)
    ]
    return wanted or list(range(len(columns)))


def cell_of(runs: dict[str, Run], config: RunConfig, column: Mapping[str, Any]) -> Cell:
    """A column's figure over runs by seed that train as `config` does, and the paper's for it."""
    dataset = column["dataset"] or config.dataset
    found = {seed: _found(run.result, dataset, column) for seed, run in runs.items()}
    values = {seed: value for seed, (value, _) in found.items() if value is not None and math.isfinite(value)}
    images = {seed: count for seed, (_, count) in found.items() if seed in values and count is not None}
    some = any(count < _tested(runs[seed].result, dataset) for seed, count in images.items())
    paper = not any(run.departures for run in runs.values())
    value = published.find(config, dataset, column["metric"], column["eps"]) if paper else None
    return Cell(
        runs=runs, values=values, images=images if some else {}, dataset=dataset, published=value,
        timed=column["metric"] == "minutes",
    )  # fmt: skip


def figure(result: Mapping[str, Any] | None, dataset: str, column: Mapping[str, Any]) -> float | None:
    """The column's figure of a result, on the most images if on several; None: not measured."""
    return _found(result, dataset, column)[0]


def _found(
    result: Mapping[str, Any] | None, dataset: str, column: Mapping[str, Any]
) -> tuple[float | None, int | None]:
    """The figure, and how many images were attacked for it; None: all, or none."""
    if result is None:
        return None, None
    metric, eps = column["metric"], column["eps"]
    if metric == "minutes":
        shared = result["protocol"].get("hardware", {}).get("shared")
        seconds = None if shared else result["time_s"].get("pretrain")
        return None if seconds is None else float(seconds) / 60, None
    if eps is None or metric == "clean":
        value = result["accuracy"].get(dataset, {}).get(metric)
        if value is not None or metric == "clean":
            images = None if metric == "clean" else result["config"]["evaluation"].get("images")
            return None if value is None else float(value), images
        eps = result["config"]["evaluation"]["eps"][0]
    rows = [r for r in result["attacks"] if (r["dataset"], r["name"], r["eps"]) == (dataset, metric, eps)]
    row = max(rows, key=lambda row: int(row["images"]), default=None)
    return (None, None) if row is None else (float(row["accuracy"]), int(row["images"]))


def _tested(result: Mapping[str, Any] | None, dataset: str) -> int:
    """How many test images there were."""
    images = (result or {}).get("protocol", {}).get("images", {})
    return int(images.get(dataset, {}).get("test", 0))
