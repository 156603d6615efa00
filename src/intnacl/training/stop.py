"""When a run must stop before its end: SIGTERM, Ctrl-C, or the minutes it was given."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from intnacl.errors import InputError

REASONS = (None, "time", "interrupt", "terminate")


class _NowError(BaseException):
    """Ends a block of `Stop.at_once`; nobody else catches it."""


class Stop:
    """Turns signals and a time limit into a reason to stop; the trainer asks for it between steps."""

    def __init__(self, max_minutes: float | None = None) -> None:
        if max_minutes is not None and not max_minutes >= 0:
            raise InputError(f"max_minutes={max_minutes} must be 0 or more; 0 does a single update.")
        self.reason: str | None = None
        self._end = time.monotonic() + 60 * max_minutes if max_minutes is not None else None
        self._former: dict[int, Any] = {}
        self._waits = True

    def __enter__(self) -> "Stop":
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._former[number] = signal.signal(number, self._notice)
            except ValueError:  # not in the main thread: whoever runs there handles signals
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def due(self) -> bool:
        """Whether to stop now."""
        if self.reason is None and self._end is not None and time.monotonic() > self._end:
            self.reason = "time"
        return self.reason is not None

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A signal ends the block where it is: for long work without steps that keeps what is done."""
        self._waits = False
        try:
            yield
            self._waits = True  # here too: a signal just before `finally` would leave this method
        except _NowError:
            pass
        finally:
            self._waits = True

    def shared(self, largest: Callable[[int], int]) -> bool:
        """Whether to stop, and why, decided by all ranks together; `largest` is their maximum of a number."""
        self.due()
        number = largest(REASONS.index(self.reason))
        if number:  # else the reason stays as it is: a signal may have come meanwhile, for the next time
            self.reason = REASONS[number]
        return number > 0

    def _notice(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.reason == "interrupt":  # a second Ctrl-C does not wait
            raise KeyboardInterrupt
        self.reason = "terminate" if number == signal.SIGTERM else "interrupt"
        if not self._waits:
            self._waits = True  # a second signal must not cut short what cleans up after this one
            raise _NowError
