"""Reasons to stop: signals, time, and the ranks' common decision."""

import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import FrameType
from typing import Any

import pytest

from intnacl.errors import InputError
from intnacl.training.stop import REASONS, Stop
from mistakes import must_refuse

SIGNALS = {signal.SIGTERM: "terminate", signal.SIGINT: "interrupt"}


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noticed_and_the_former_handler_is_restored(number):
    former = signal.getsignal(number)
    with Stop() as stop:
        assert not stop.due()
        signal.raise_signal(number)
        assert stop.due()
        assert stop.reason == SIGNALS[number]
        with pytest.raises(KeyboardInterrupt) if number == signal.SIGINT else nullcontext():
            signal.raise_signal(number)  # a second Ctrl-C does not wait
        signal.raise_signal(signal.SIGTERM)
        assert stop.reason == "terminate"
    assert signal.getsignal(number) is former


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_work_without_steps_at_once(number):
    """A second signal, which a worker gets after a Ctrl-C to all, does not interrupt the clean-up."""
    cleaned = []
    with Stop() as stop:
        with stop.at_once():
            try:
                signal.raise_signal(number)
                raise AssertionError("went on")
            finally:
                assert stop.reason == SIGNALS[number]
                signal.raise_signal(signal.SIGTERM)
                cleaned.append(True)
        assert (cleaned, stop.reason) == ([True], "terminate")
    for error in (None, InputError("no")):
        with Stop() as stop:
            with pytest.raises(InputError) if error else nullcontext(), stop.at_once():
                if error:
                    raise error
            signal.raise_signal(number)  # waits as ever
            assert stop.due()


@pytest.mark.parametrize("place", range(3))
def test_a_signal_as_such_work_ends_does_not_escape(place):
    """At the block's end, and at each line that follows it in `at_once`."""
    ended, lines, former = [], [], sys.gettrace()

    def look(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if event == "line" and ended:
            lines.append(frame.f_lineno)
            if len(lines) == place:
                signal.raise_signal(signal.SIGTERM)
        return look if frame.f_code.co_name == "at_once" else None

    with Stop() as stop:
        sys.settrace(look)
        try:
            with stop.at_once():
                ended.append(True)
                if place == 0:
                    signal.raise_signal(signal.SIGTERM)
        finally:
            sys.settrace(former)
        signal.raise_signal(signal.SIGTERM)
        assert stop.due()
    assert len(lines) >= place, "the signal came"


def test_the_time_limit_is_a_reason_and_must_not_be_negative():
    assert not Stop(60).due()
    stop = Stop(0)
    assert stop.due()
    assert stop.reason == "time"
    must_refuse(Stop, -1, r"max_minutes=-1 must be 0 or more")


def test_in_another_thread_signals_are_left_to_the_main_one():
    def work() -> tuple[bool, bool]:
        with Stop() as stop:
            return stop.due(), signal.getsignal(signal.SIGTERM) is former

    former = signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor() as pool:
        assert pool.submit(work).result() == (False, True)


@pytest.mark.parametrize("own", [None, "time", "terminate"])
@pytest.mark.parametrize("others", [None, "time", "terminate"])
def test_ranks_share_the_gravest_reason(own, others):
    stop = Stop()
    stop.reason = own
    shared = stop.shared(lambda number: max(number, REASONS.index(others)))
    assert stop.reason == max(own, others, key=[None, "time", "terminate"].index)
    assert shared == (stop.reason is not None)


def test_a_signal_during_the_decision_counts_at_the_next_one():
    def decide(number: int) -> int:
        signal.raise_signal(signal.SIGTERM)
        return number

    with Stop() as stop:
        assert not stop.shared(decide), "the ranks had decided to go on"
        assert stop.shared(lambda number: number)
        assert stop.reason == "terminate"
