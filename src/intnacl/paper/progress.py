"""The progress of a session: a live table on a terminal, otherwise a line for each event."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Union

from intnacl.console import show
from intnacl.errors import printable
from intnacl.paper.attempts import failure, run_folder
from intnacl.paper.plan import Job
from intnacl.training.journal import last_record

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

SHOWN = 12  # rows of the live table
COLORS = {"running": "cyan", "failed": "red", "begun": "yellow", "waiting": "dim"}  # in this order


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The displayed state of a run."""

    name: str
    status: str
    """finished, running, failed, begun or waiting."""
    detail: str = ""


def status_of(job: Job, results: Path, session: str) -> RunStatus:
    """Read a run's status from its folder; a run that only earlier sessions gave up has not failed."""
    folder = run_folder(results, job.name)
    if folder.is_finished():
        return RunStatus(name=job.name, status="finished")
    holder, noted = folder.holder(), failure(folder)
    if holder is None and noted and session in noted["given_up"]:
        return RunStatus(name=job.name, status="failed", detail=last_line(noted["error"]))
    if holder is None and not folder.config.exists():
        return RunStatus(name=job.name, status="waiting")
    last = last_record(folder.log)
    epochs = f"epoch {last['epoch'] if last else 0}/{job.config.train.epochs}"
    if holder is None:
        return RunStatus(name=job.name, status="begun", detail=epochs)
    minutes = (time.time() - holder.get("since", time.time())) / 60
    place = f"{holder.get('host', '?')}:{holder.get('pid', '?')}"
    return RunStatus(name=job.name, status="running", detail=f"{epochs} · {minutes:.1f} min · {place}")


def last_line(error: str) -> str:
    """Return the last line of a traceback, or the first line of another message."""
    lines = [line for line in error.strip().splitlines() if line.strip()] or ["?"]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


class Progress:
    """The display of a session's runs. `costs` are the estimated seconds of each run."""

    def __init__(self, jobs: Sequence[Job], results: Path, costs: Mapping[str, float], session: str) -> None:
        from rich.console import Console

        self.jobs, self.results, self.costs, self.session = jobs, results, costs, session
        self.console = Console()
        self._begun = time.monotonic()
        self._looked = 0.0
        self._former: dict[str, str] = {}
        """The status of each run at the last update."""
        self._done_before: set[str] | None = None
        self._live: Live | None = None

    def __enter__(self) -> "Progress":
        if self.console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self.console, refresh_per_second=2)
            self._live.start()
        self.update(force=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.update(force=True)
        if self._live:
            self._live.stop()

    def update(self, *, force: bool = False) -> None:
        """Read the run folders again, at most once per second."""
        if not force and time.monotonic() - self._looked < 1:
            return
        self._looked = time.monotonic()
        runs = [status_of(job, self.results, self.session) for job in self.jobs]
        if self._done_before is None:
            self._done_before = {run.name for run in runs if run.status == "finished"}
        if self._live:
            self._live.update(self._table(runs))
            return
        done = sum(run.status == "finished" for run in runs)
        for run in runs:
            former = self._former.get(run.name)
            self._former[run.name] = run.status
            news = run.status in ("running", "failed", "finished") and run.status != former
            if news and (former is not None or run.status == "running"):  # otherwise from an earlier session
                detail = f": {run.detail}" if run.status == "failed" else ""
                show(f"[{done}/{len(runs)}] {run.status} {run.name}{detail}")

    def _table(self, runs: Sequence[RunStatus]) -> Union["Table", str]:
        from rich.markup import escape
        from rich.table import Table

        counts = Counter(run.status for run in runs)
        title = ", ".join(f"{n} {status}" for status, n in counts.most_common())
        if set(counts) == {"finished"}:
            return title
        # The time left is estimated from the costs, scaled by the actual time of this session's finished
        # runs.
        done = {run.name for run in runs if run.status == "finished"} - (self._done_before or set())
        spent = sum(self.costs.get(name, 0.0) for name in done)
        left = sum(self.costs.get(r.name, 0.0) for r in runs if r.status not in ("finished", "failed"))
        if spent and left:
            title += f" · about {(time.monotonic() - self._begun) * left / spent / 60:.0f} min left"
        table = Table("run", "", "", title=title, expand=True)
        shown = [run for status in COLORS for run in runs if run.status == status]
        for run in shown[:SHOWN]:
            table.add_row(
                escape(run.name), f"[{COLORS[run.status]}]{run.status}", escape(printable(run.detail))
            )
        if len(shown) > SHOWN:
            table.add_row(f"… and {len(shown) - SHOWN} more", "", "")
        return table
