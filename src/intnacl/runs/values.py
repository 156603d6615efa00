"""Values of settings, from the text of a command line or from a file, as the types that they must have."""

import types
import typing
from typing import Any

from intnacl.errors import InputError

_NOUNS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


def typed(value: Any, wanted: Any, key: str) -> Any:
    """The value as the field's type; strings of the command line are read."""
    if typing.get_origin(wanted) in (types.UnionType, typing.Union):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        (wanted,) = (kind for kind in typing.get_args(wanted) if kind is not type(None))
    try:
        if typing.get_origin(wanted) is tuple:
            return _tuple(value, typing.get_args(wanted))
        return _scalar(value, wanted)
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{key}={value!r} is not {_noun(wanted, isinstance(value, str))}.") from None


def _tuple(value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    """Items of one kind, as many as the type has (`...`: any number); text is split at commas."""
    items = [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value
    if kinds[-1] is not Ellipsis and len(items) != len(kinds):
        raise ValueError
    return tuple(_scalar(item, kinds[0]) for item in items)


def _noun(wanted: Any, as_text: bool) -> str:
    """What is wanted; a list is written otherwise as the command line's text than in a file."""
    if typing.get_origin(wanted) is not tuple:
        return _NOUNS[wanted]
    kinds = typing.get_args(wanted)
    count = "a list" if kinds[-1] is Ellipsis else f"a list of {len(kinds)}"
    form = "with commas between and no brackets" if as_text else "in brackets"
    return f"{count}, each {_NOUNS[kinds[0]]}, {form}"


def _scalar(value: Any, kind: type) -> Any:
    if kind is bool:
        if str(value).lower() not in _TRUTHS:
            raise ValueError
        return _TRUTHS[str(value).lower()]
    if isinstance(value, bool) or (kind is str and not isinstance(value, str)):
        raise TypeError
    if kind is int and isinstance(value, float) and value != int(value):
        raise TypeError
    return number(value) if kind is float and isinstance(value, str) else kind(value)


def number(text: str) -> float:
    """A number as people write it: 0.002, 1e-3, or 8/255 as radii of attacks are given."""
    above, slash, below = text.partition("/")
    try:
        return float(above) / float(below) if slash else float(text)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{text!r} is not a number such as 0.002, 1e-3 or 8/255.") from None
