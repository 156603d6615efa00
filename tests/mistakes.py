"""Checks of users' mistakes: a table with a test for each row, or a single one within a test."""

from collections.abc import Callable

import pytest

from intnacl.errors import InputError


def must_refuse(call: Callable[..., object], *case, **options) -> None:
    """Check that `call` refuses the arguments of the case with the message at the case's end."""
    *arguments, message = case
    with pytest.raises(InputError, match=message):
        call(*arguments, **options)


def refused(call: Callable[..., object], *cases: tuple) -> Callable[..., None]:
    """Return a test that `call` refuses the arguments of each case with the message at the case's end."""

    @pytest.mark.parametrize("case", cases, ids=lambda case: case[-1])
    def test(case):
        must_refuse(call, *case)

    return test
