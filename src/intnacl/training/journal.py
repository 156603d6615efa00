"""The journal of a run: always `log.jsonl`; a progress bar on a terminal, else one plain line per epoch."""

import json
import os
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from intnacl.console import show
from intnacl.errors import printable
from intnacl.files import disk_errors, parse_json, read_file, write_file
from intnacl.training.trackers import Tracking

SPENT = ("seconds", "compiling", "pausing")
"""Seconds spent so far on updates, on compilation, and on monitoring and saving checkpoints."""
TIMES = ("images_per_s", *SPENT, "compiled", "ranks")
"""The last epoch's images per second, the seconds spent, whether updates are compiled, and how many ranks."""
NO_CURVE = (
    "epoch",
    "step",
    *SPENT,
    "compiled",
    "ranks",
)  # entries of a record that only count, or never change
ACCURACIES = ("knn", "knn_train", "probe", "probe_train", "accuracy")  # in percent
RANK = "rankme"  # the features' effective rank
LONG = 600.0  # seconds left from which the time left is announced
TAIL = 2**16  # bytes at the end of a log that are read for its last record of a few hundred bytes


Record = dict[str, float]
"""An epoch's numbers by name: its terms and figures, `epoch` and `step`, and those of TIMES."""


class Journal:
    """Records the epochs of a run, in the file `log` and with the trackers of `tracking`.

    Only the main rank's journal is active; others write and print nothing. Numbers named in `constant` never
    change, so they are not printed.
    """

    def __init__(
        self,
        log: Path,
        *,
        epochs: int,
        active: bool = True,
        tracking: Tracking | None = None,
        constant: Collection[str] = (),
    ) -> None:
        self.path, self.epochs, self.active, self._constant = log, epochs, active, constant
        self._time_announced = False
        self._bar = _bar(epochs) if active and sys.stderr.isatty() else None
        self._tracking = tracking if active else None

    def __enter__(self) -> "Journal":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()
        if self._tracking:
            self._tracking.end()

    def rewind(self, step: int) -> None:
        """Delete the epochs after `step`, which a resumed run writes again, and begin tracking."""
        if self.active:
            kept = [r for r in records(self.path) if r["step"] <= step]
            write_file(self.path, "".join(json.dumps(r) + "\n" for r in kept).encode())
            if self._tracking:
                self._tracking.begin(curves(kept))

    def progress(self, epochs_done: float, terms: dict[str, float], images_per_s: float) -> None:
        """Update the progress bar."""
        if self._bar:
            self._bar.update(
                self._bar.task_ids[0],
                completed=epochs_done,
                terms=_terms(terms),
                speed=f"{images_per_s:,.0f} images/s",
            )

    def epoch(self, record: Record) -> None:
        """Write the record of an epoch."""
        if not self.active:
            return
        with disk_errors(self.path), self.path.open("a") as log:
            log.write(json.dumps(record) + "\n")
            log.flush()
            os.fsync(log.fileno())  # a checkpoint of this step relies on it
        ((epoch, figures),) = curves([record]).items()
        if self._tracking:
            self._tracking.epoch(epoch, figures)
        if not self._bar:
            shown = {name: value for name, value in figures.items() if name not in self._constant}
            speed = f"{shown.pop('images_per_s'):,.0f} images/s"
            print(f"epoch {record['epoch']}/{self.epochs}  {_terms(shown)}  {speed}", flush=True)

    def time_left(self, seconds: float) -> None:
        """Announce once how long the run will take, if that is long and no bar shows it."""
        if not (self._bar or self._time_announced) and seconds > LONG:
            time = f"{seconds / 60:.0f} minutes" if seconds < 2 * 3600 else f"{seconds / 3600:.0f} hours"
            self.say(f"about {time} to go at this speed")
        self._time_announced = True

    def say(self, text: str) -> None:
        """Print a sentence for the user."""
        if self._bar:
            self._bar.console.print(printable(text), markup=False, highlight=False)
        elif self.active:
            show(text)


def records(path: Path) -> list[Record]:
    """Read the records of a log; skip invalid lines, such as one that was cut short by a kill."""
    lines = read_file(path).splitlines() if path.is_file() else []
    return [record for line in lines if (record := _record(line)) is not None]


def last_record(path: Path) -> Record | None:
    """Read the last record from the end of a log; return None if there is none."""
    if not path.is_file():
        return None
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - TAIL))
        lines = log.read().splitlines()
    return next((record for line in reversed(lines) if (record := _record(line)) is not None), None)


def _record(line: bytes) -> Record | None:
    """Return the record in a line; None if it is damaged or lacks epoch, step or numbers."""
    try:
        record: Record = parse_json(line)
        numbers = all(isinstance(value, int | float) for value in record.values())
    except (ValueError, AttributeError):
        return None
    return record if numbers and {"epoch", "step"} <= record.keys() else None


def curves(several: Iterable[Record]) -> dict[int, Record]:
    """Return by epoch the figures of records that change over epochs, without counters."""
    return {
        int(record["epoch"]): {k: v for k, v in informative(record).items() if k not in NO_CURVE}
        for record in several
    }


def informative(record: Record) -> Record:
    """Leave out `nacl` and `robust` if the robust term is 0, since `nacl` then repeats `loss`."""
    redundant = ("nacl", "robust") if record.get("robust") == 0 else ()
    return {name: value for name, value in record.items() if name not in redundant}


def figure_text(name: str, value: float) -> str:
    """Format a number of a record: a loss as 4.700, an accuracy as 87.30, a rank as 87.3, a rate as 0.001."""
    if name == "lr":
        return f"{value:.4g}"
    return f"{value:.{1 if name == RANK else 2 if name in ACCURACIES else 3}f}"


def _terms(terms: dict[str, float]) -> str:
    """Format terms: nacl 4.100  robust 20.300  loss 24.400; without a robust term only the loss."""
    return "  ".join(f"{name} {figure_text(name, value)}" for name, value in informative(terms).items())


def _bar(epochs: int) -> Any:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("epoch {task.completed:.1f}/{task.total}"),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[terms]}"),
        progress.TextColumn("{task.fields[speed]}"),
        progress.TimeRemainingColumn(),
    )
    # The time left is estimated from the last minutes: in rich's 30 seconds there may be only one slow step.
    bar = progress.Progress(*columns, console=Console(stderr=True), speed_estimate_period=600)
    bar.add_task("training", total=epochs, terms="", speed="")
    return bar
