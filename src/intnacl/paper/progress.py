"""What goes on in a results folder: a live table on a terminal, a line for each event elsewhere."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intnacl.paper.attempts import failure, run_folder
from intnacl.paper.plan import Job
from intnacl.runs.folder import RunFolder
from intnacl.training.journal import last_record

SHOWN = 12


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a run stands."""

    name: str
    status: str
    """finished, running, failed, begun or waiting."""
    detail: str = ""


def state_of(job: Job, results: Path, session: str) -> State:
    """Read from the run's folder; what only earlier sessions gave up will be tried again by this one."""
    folder = run_folder(results, job.name)
    if folder.is_finished():
        return State(name=job.name, status="finished")
    who = folder.holder()
    if who is not None:
        minutes = (time.time() - who.get("since", time.time())) / 60
        place = f"{who.get('host', '?')}:{who.get('pid', '?')}"
        return State(
            name=job.name, status="running", detail=f"{_epochs(job, folder)} · {minutes:.1f} min · {place}"
        )
    noted = failure(folder)
    if noted and session in noted["given_up"]:
        return State(name=job.name, status="failed", detail=last_line(noted["error"]))
    begun = folder.config.exists()
    return State(
        name=job.name, status="begun" if begun else "waiting", detail=_epochs(job, folder) if begun else ""
    )


def last_line(error: str) -> str:
    """The line of a traceback that says what happened; the first of a message."""
    lines = [line for line in error.strip().splitlines() if line.strip()] or ["?"]
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]


def _epochs(job: Job, folder: RunFolder) -> str:
    last = last_record(folder.log)
    return f"epoch {last['epoch'] if last else 0}/{job.config.train.epochs}"


class Progress:
    """Shows the states of all runs of a session; on a terminal as a table that moves."""

    def __init__(
        self, jobs: tuple[Job, ...], results: Path, costs: Mapping[str, float], session: str
    ) -> None:
        from rich.console import Console

        self.jobs, self.results, self.costs, self.session = jobs, results, costs, session
        self.console = Console()
        self._seen: dict[str, str] = {}
        self._begun = time.monotonic()
        self._done_before: set[str] | None = None
        self._live: Any = None
        self._looked = 0.0

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
        """Look at the run folders again, at most once a second."""
        if not force and time.monotonic() - self._looked < 1:
            return
        self._looked = time.monotonic()
        states = [state_of(job, self.results, self.session) for job in self.jobs]
        if self._done_before is None:
            self._done_before = {state.name for state in states if state.status == "finished"}
        if self._live:
            self._live.update(self._table(states))
        else:
            self._lines(states)

    def _lines(self, states: list[State]) -> None:
        done = sum(state.status == "finished" for state in states)
        for state in states:
            former = self._seen.get(state.name)
            self._seen[state.name] = state.status
            news = state.status in ("running", "failed", "finished") and state.status != former
            if news and (former is not None or state.status == "running"):  # else of an earlier session
                detail = f": {state.detail}" if state.status == "failed" else ""
                print(f"[{done}/{len(states)}] {state.status} {state.name}{detail}", flush=True)

    def _table(self, states: list[State]) -> Any:
        from rich.markup import escape
        from rich.table import Table

        counts = Counter(state.status for state in states)
        text = ", ".join(f"{n} {status}" for status, n in counts.most_common())
        if set(counts) == {"finished"}:
            return text
        table = Table("run", "", "", title=f"{text}{self._time_left(states)}", expand=True)
        colours = {"running": "cyan", "failed": "red", "begun": "yellow", "waiting": "dim"}
        order = list(colours)
        shown = sorted((s for s in states if s.status in colours), key=lambda s: order.index(s.status))
        for state in shown[:SHOWN]:
            colour = colours[state.status]
            table.add_row(escape(state.name), f"[{colour}]{state.status}", escape(state.detail))
        if len(shown) > SHOWN:
            table.add_row(f"… and {len(shown) - SHOWN} more", "", "")
        return table

    def _time_left(self, states: list[State]) -> str:
        """From the estimated costs, corrected by how long this session's runs really took."""
        done = {state.name for state in states if state.status == "finished"}
        new = done - (self._done_before or set())
        spent = sum(self.costs.get(name, 0.0) for name in new)
        left = sum(self.costs.get(s.name, 0.0) for s in states if s.status not in ("finished", "failed"))
        if not spent or not left:
            return ""
        minutes = (time.monotonic() - self._begun) * left / spent / 60
        return f" · about {minutes:.0f} min left"
