"""Mistakes of users as tables: a test a row."""

from collections.abc import Callable

import pytest

from intnacl.errors import InputError


def refused(call: Callable[..., object], *cases: tuple) -> Callable[..., None]:
    """A test that `call` refuses the arguments of each case with the message at the case's end."""

    @pytest.mark.parametrize("case", cases, ids=lambda case: case[-1])
    def test(case):
        *arguments, message = case
        with pytest.raises(InputError, match=message):
            call(*arguments)

    return test
