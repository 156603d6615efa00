"""Reasons to stop a run before its end: SIGTERM, Ctrl-C, or a time limit."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from intnacl.errors import InputError

REASONS = (None, "time", "interrupt", "terminate")


class _NowError(BaseException):
    """Ends a block of `Stop.at_once`, where it is caught."""


class Stop:
    """Turns signals and a time limit into a reason to stop; the trainer checks for it between steps."""

    def __init__(self, max_minutes: float | None = None) -> None:
        if max_minutes is not None and not (isinstance(max_minutes, int | float) and max_minutes >= 0):
            raise InputError(f"max_minutes={max_minutes!r} must be 0 or more; 0 does a single update.")
        self.reason: str | None = None
        self._end = time.monotonic() + 60 * max_minutes if max_minutes is not None else None
        self._former: dict[int, Any] = {}
        self._deferred = True

    def __enter__(self) -> "Stop":
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._former[number] = signal.signal(number, self._notice)
            except ValueError:  # only the main thread can handle signals
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def due(self) -> bool:
        """True if it is time to stop."""
        if self.reason is None and self._end is not None and time.monotonic() > self._end:
            self.reason = "time"
        return self.reason is not None

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """End the block as soon as a signal arrives: for long work that saves its progress."""
        self._deferred = False
        try:
            yield
            self._deferred = True  # here too: a signal just before `finally` would escape from this method
        except _NowError:
            pass
        finally:
            self._deferred = True

    def shared(self, largest: Callable[[int], int]) -> bool:
        """Decide with all ranks whether to stop, and why; `largest` returns a number's maximum over ranks."""
        self.due()
        number = largest(REASONS.index(self.reason))
        if number:  # otherwise keep a signal that arrived meanwhile for the next call
            self.reason = REASONS[number]
        return number > 0

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.reason == "interrupt":  # a second Ctrl-C interrupts at once
            raise KeyboardInterrupt
        self.reason = "terminate" if number == signal.SIGTERM else "interrupt"
        if not self._deferred:
            self._deferred = True  # a second signal must not cut the clean-up short
            raise _NowError
