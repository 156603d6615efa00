"""Reasons to stop: signals, time, and the ranks' common decision."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import Any

import pytest

from intnacl.errors import InputError
from intnacl.training.stop import REASONS, Stop


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, "terminate"), (signal.SIGINT, "interrupt")])
def test_a_signal_is_noticed_and_the_former_handler_comes_back(number: int, reason: str) -> None:
    former = signal.getsignal(number)
    with Stop() as stop:
        assert not stop.due()
        os.kill(os.getpid(), number)
        assert stop.due()
        assert stop.reason == reason
    assert signal.getsignal(number) is former


def test_a_second_interrupt_does_not_wait_but_sigterm_does() -> None:
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.due()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.reason == "terminate"


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGTERM, "terminate"), (signal.SIGINT, "interrupt")])
def test_work_without_steps_ends_at_once(number: int, reason: str) -> None:
    with Stop() as stop:
        with stop.at_once():
            os.kill(os.getpid(), number)
            raise AssertionError("went on")
        assert stop.reason == reason
    for error in (None, InputError("no")):
        with Stop() as stop:
            with pytest.raises(InputError) if error else nullcontext(), stop.at_once():
                if error:
                    raise error
            os.kill(os.getpid(), number)  # waits as ever
            assert stop.due()


def test_a_second_signal_leaves_the_first_ones_cleaning_up_alone() -> None:
    """As a worker gets them: Ctrl-C goes to all, then whoever started it asks it to end."""
    cleaned = []
    with Stop() as stop:
        with stop.at_once():
            try:
                os.kill(os.getpid(), signal.SIGINT)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                cleaned.append(True)
        assert cleaned
        assert stop.reason == "terminate"


@pytest.mark.parametrize("place", range(3))
def test_a_signal_as_such_work_ends_stays_inside(place: int) -> None:
    """At the block's end, and at each line that follows it in `at_once`."""
    ended, lines = [], []

    def at_a_line(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "line" and ended:
            lines.append(frame.f_lineno)
            if len(lines) == place:
                os.kill(os.getpid(), signal.SIGTERM)
        return at_a_line

    def watched(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        return at_a_line if frame.f_code.co_name == "at_once" else None

    former = sys.gettrace()
    with Stop() as stop:
        sys.settrace(watched)
        try:
            with stop.at_once():
                ended.append(True)
                if place == 0:
                    os.kill(os.getpid(), signal.SIGTERM)
        finally:
            sys.settrace(former)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.due()
    assert len(lines) >= place, "the signal came"


def test_minutes_are_a_reason_and_not_negative() -> None:
    assert not Stop(60).due()
    stop = Stop(0)
    assert stop.due()
    assert stop.reason == "time"
    with pytest.raises(InputError, match=r"max_minutes=-1 must be 0 or more"):
        Stop(-1)


def test_in_another_thread_signals_are_left_to_the_main_one() -> None:
    former, seen = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with Stop() as stop:
            seen.append(stop.due())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
    assert signal.getsignal(signal.SIGTERM) is former


@pytest.mark.parametrize(
    ("own", "others", "reason"),
    [
        (None, None, None),
        ("time", None, "time"),
        (None, "terminate", "terminate"),
        ("time", "terminate", "terminate"),
        ("terminate", "time", "terminate"),
    ],
)
def test_ranks_share_the_gravest_reason(own: str, others: str, reason: str) -> None:
    stop = Stop()
    stop.reason = own
    assert stop.shared(lambda number: max(number, REASONS.index(others))) == (reason is not None)
    assert stop.reason == reason


def test_a_signal_during_the_decision_counts_at_the_next_one() -> None:
    def decide(number: int) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return number

    with Stop() as stop:
        assert not stop.shared(decide), "the ranks had decided to go on"
        assert stop.shared(lambda number: number)
        assert stop.reason == "terminate"
