"""Where a run stands: what its checkpoints keep beside the weights and the optimiser."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from intnacl.training.journal import SPENT


@dataclass
class RunState:
    """All that changes while a run goes on, but for its tensors."""

    step: int = 0
    """Updates done."""
    sums: dict[str, float] = field(default_factory=dict)
    """Of the terms of the current epoch's updates."""
    best: tuple[float, int] | None = None
    """The highest score so far, and its step."""
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPENT, 0.0))
    """Seconds, by every process that went on with the run."""

    @contextmanager
    def spending(self, what: str) -> Iterator[None]:
        """Count the seconds of the block."""
        begun = time.monotonic()
        yield
        self.spent[what] += time.monotonic() - begun

    def add(self, sums: Mapping[str, float]) -> None:
        """The terms of more updates of the epoch."""
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def end_epoch(self, updates: int) -> dict[str, float]:
        """The terms' means over its updates; the next epoch begins."""
        means = {name: total / updates for name, total in self.sums.items()}
        self.sums = {}
        return means

    def judge(self, score: float | None) -> None:
        """Remember this step if its score is the best; None and what is no number are no scores."""
        if score is not None and math.isfinite(score) and (self.best is None or score > self.best[0]):
            self.best = (float(score), self.step)

    @property
    def is_best(self) -> bool:
        """Whether the run stands at its best step."""
        return self.best is not None and self.best[1] == self.step

    def info(self) -> dict[str, Any]:
        """As a checkpoint keeps it beside its step."""
        return self.spent | {"sums": self.sums, "best": self.best}

    @classmethod
    def at(cls, step: int, info: Mapping[str, Any]) -> Self:
        """As a checkpoint kept it; seconds that earlier versions did not count are 0."""
        best = info["best"]
        spent = {what: info.get(what, 0.0) for what in SPENT}
        return cls(step=step, sums=info["sums"], best=(best[0], best[1]) if best else None, spent=spent)
