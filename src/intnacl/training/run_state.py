"""The state of a run: what its checkpoints keep beside the weights and the optimiser."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NotRequired, Self, TypedDict

from intnacl.training.journal import SPENT


class RunInfo(TypedDict):
    """The state of a run as JSON; what earlier versions did not keep is missing."""

    sums: dict[str, float]
    best: tuple[float, int] | None
    seconds: NotRequired[float]
    compiling: NotRequired[float]
    pausing: NotRequired[float]
    data: NotRequired[str | None]
    """The checksum of the data set."""
    ranks: NotRequired[int]
    """The number of ranks that trained up to here."""
    broken: NotRequired[dict[str, str]]
    """Damaged images among streamed ones: name -> reason."""
    decoder: NotRequired[str]
    """The decoder of streamed images."""


@dataclass
class RunState:
    """All that changes while a run goes on, except its tensors."""

    step: int = 0
    """Updates done."""
    sums: dict[str, float] = field(default_factory=dict)
    """Of the terms of the current epoch's updates."""
    best: tuple[float, int] | None = None
    """The highest kNN accuracy on held-out images so far, and its step."""
    broken: dict[str, str] = field(default_factory=dict)
    """Damaged images among streamed ones, that were met so far: name -> reason."""
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPENT, 0.0))
    """Seconds, summed over all processes that went on with the run."""

    @contextmanager
    def spending(self, what: str) -> Iterator[None]:
        """Count the seconds of the block."""
        begun = time.monotonic()
        yield
        self.spent[what] += time.monotonic() - begun

    def add(self, sums: Mapping[str, float]) -> None:
        """Add the terms of more updates of the epoch."""
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def end_epoch(self, updates: int) -> dict[str, float]:
        """Return the terms' means over the epoch's updates; the next epoch begins."""
        means = {name: total / updates for name, total in self.sums.items()}
        self.sums = {}
        return means

    def judge(self, score: float | None) -> None:
        """Remember this step if its score is the best so far; None and infinite ones do not count."""
        if score is not None and math.isfinite(score) and (self.best is None or score > self.best[0]):
            self.best = (float(score), self.step)

    @property
    def is_best(self) -> bool:
        """True if the best step is the current one."""
        return self.best is not None and self.best[1] == self.step

    def info(self, data: str | None = None, ranks: int = 1, decoder: str | None = None) -> RunInfo:
        """Return what a checkpoint keeps beside its step, with the data set's checksum.

        `decoder` is that of streamed images.
        """
        info: RunInfo = {
            "seconds": self.spent["seconds"],
            "compiling": self.spent["compiling"],
            "pausing": self.spent["pausing"],
            "sums": self.sums,
            "best": self.best,
            "data": data,
            "ranks": ranks,
        }
        if decoder is not None:
            info |= {"broken": self.broken, "decoder": decoder}
        return info

    @classmethod
    def at(cls, step: int, info: RunInfo) -> Self:
        """Return the state that a checkpoint kept."""
        best = info["best"]
        spent = {
            "seconds": info.get("seconds", 0.0),
            "compiling": info.get("compiling", 0.0),
            "pausing": info.get("pausing", 0.0),
        }
        return cls(
            step=step,
            sums=info["sums"],
            best=(best[0], best[1]) if best else None,
            broken=info.get("broken", {}),
            spent=spent,
        )
