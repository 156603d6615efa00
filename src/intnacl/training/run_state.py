"""The state of a run that its checkpoints hold besides the weights and the optimiser's state."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NotRequired, Self, TypedDict

from intnacl.training.journal import SPENT


class RunInfo(TypedDict):
    """The state of a run as JSON; entries that earlier versions did not write may be missing."""

    sums: dict[str, float]
    best: tuple[float, int] | None
    seconds: NotRequired[float]
    compiling: NotRequired[float]
    pausing: NotRequired[float]
    data: NotRequired[str | None]
    """The checksum of the data set."""
    ranks: NotRequired[int]
    """The number of ranks that trained up to this step."""
    broken: NotRequired[dict[str, str]]
    """Damaged images among streamed ones: name -> reason."""
    decoder: NotRequired[str]
    """The decoder of streamed images."""


@dataclass
class RunState:
    """Everything that changes during a run, except for tensors."""

    step: int = 0
    """The number of updates done."""
    sums: dict[str, float] = field(default_factory=dict)
    """The sums of the loss's terms over the current epoch's updates."""
    best: tuple[float, int] | None = None
    """The highest kNN accuracy on held-out images so far, and its step."""
    broken: dict[str, str] = field(default_factory=dict)
    """Damaged streamed images that were found so far: name -> reason."""
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPENT, 0.0))
    """Seconds spent, summed over all processes that ran or resumed the run."""

    @contextmanager
    def spending(self, what: str) -> Iterator[None]:
        """Count the seconds of the block."""
        begun = time.monotonic()
        yield
        self.spent[what] += time.monotonic() - begun

    def add(self, sums: Mapping[str, float]) -> None:
        """Add sums of the loss's terms over further updates of the epoch."""
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def end_epoch(self, updates: int) -> dict[str, float]:
        """Return the terms' means over the epoch's updates, and reset the sums."""
        means = {name: total / updates for name, total in self.sums.items()}
        self.sums = {}
        return means

    def judge(self, score: float | None) -> None:
        """Remember this step if its score is the best so far; None and non-finite ones do not count."""
        if score is not None and math.isfinite(score) and (self.best is None or score > self.best[0]):
            self.best = (float(score), self.step)

    @property
    def is_best(self) -> bool:
        """True if the best step is the current one."""
        return self.best is not None and self.best[1] == self.step

    def info(self, data: str | None = None, ranks: int = 1, decoder: str | None = None) -> RunInfo:
        """Return what a checkpoint holds besides tensors and step.

        `data` is the checksum of the data set, `decoder` the decoder of streamed images.
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
        """Return the state that a checkpoint holds."""
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
