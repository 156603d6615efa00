"""Errors for users: each names the bad value, what is allowed, and the remedy."""

from collections.abc import Callable, Iterable
from dataclasses import field, fields
from difflib import get_close_matches
from numbers import Integral, Rational, Real
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard, get_args
from unicodedata import category

if TYPE_CHECKING:
    from torch import Tensor

LISTED = 20  # the most choices that an error lists
MOST = 2**31 - 1  # the largest count: of epochs, images, steps


def printable(text: str) -> str:
    """Return text that can be printed, drawn and written on one line.

    Line breaks, terminal codes and bytes that are no UTF-8, which names of files may hold, are escaped.
    """
    return "".join(_escaped(c) if category(c) in ("Cc", "Cs", "Zl", "Zp") else c for c in text)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # in which Python keeps a byte that is no UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


class InputError(ValueError):
    """A mistake in the user's input, not in the program: the command line shows it without a traceback.

    Its arguments are the lines of the message.
    """

    def __str__(self) -> str:
        return "\n".join(printable(str(line)) for line in self.args)


class LostRankError(RuntimeError):
    """Another rank of the run died or cannot be reached: the command line shows it without a traceback."""


class LostWorkerError(RuntimeError):
    """A worker process died: the command line shows it without a traceback."""


class InputWarning(UserWarning):
    """A part of the user's input was ignored: the command line shows it in one line."""

    def __str__(self) -> str:
        return " ".join(printable(str(line)) for line in self.args)


def check_choice(argument: str, value: str, choices: Iterable[str]) -> None:
    """Raise unless `value` is one of `choices`; suggest the nearest ones, and list all, or some of many."""
    known = sorted(choices)
    if not isinstance(value, str) or value not in known:
        by_lower = {name.lower(): name for name in known}
        near = [by_lower[name] for name in get_close_matches(str(value).lower(), by_lower, n=3)]
        hint = f"; did you mean {near[0]!r}?" if near else "."
        shown = known if len(known) <= LISTED else near or known[:LISTED]
        listed = [repr(name) if "," in name else name for name in shown]
        if len(shown) < len(known):
            listed.append(f"{len(known) - len(shown)} more")
        raise InputError(f"{argument}={value!r} is unknown{hint} Choose one of: {', '.join(listed)}.")


def check_count(argument: str, value: int, low: int = 1, high: int = MOST) -> None:
    """Raise unless `value` lies between `low` and `high`, by default the largest 32-bit integer."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{argument}={value!r} must be a whole number from {low} to {high:,}.")


def is_number(value: object) -> TypeGuard[float]:
    """True for plain numbers, also numpy's, that tensors can be multiplied by."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return whole or (isinstance(value, Real) and not isinstance(value, Rational))


def has_floats(x: "Tensor") -> bool:
    """True for floats that torch computes with, unlike those of 8 bits."""
    return x.is_floating_point() and x.dtype.itemsize > 1


def check_number(argument: str, value: float, *, zero: bool = True, high: float = 3e38) -> None:
    """Raise unless `value` lies between 0 (excluded without `zero`) and `high`; 3e38 is float32's end."""
    if not (is_number(value) and 0 <= value <= high) or (value == 0 and not zero):
        limit = f"{high:g}".replace("+", "")
        raise InputError(
            f"{argument}={value!r} must be a number {'from 0' if zero else 'above 0, up'} to {limit}."
        )


def check_dense(argument: str, value: object, expected: str) -> None:
    """Raise unless `value` is a plain tensor: no sparse, nested, quantized or meta one."""
    from torch import Tensor, strided

    if not isinstance(value, Tensor):
        raise InputError(f"{argument} is a {type(value).__name__}: expected a tensor of {expected}.")
    if value.layout != strided or value.is_nested or value.is_quantized or value.is_meta:
        kind = "meta" if value.is_meta else "quantized" if value.is_quantized else value.layout
        raise InputError(f"{argument} is a {kind} tensor: expected a dense one of {expected}.")


def check_floats(who: str, x: "Tensor") -> None:
    """Raise unless x holds floats; `who` is the beginning of the demand, such as "attacks need"."""
    if not has_floats(x):
        raise InputError(f"x has dtype {x.dtype}; {who} float pixels in [0, 1]: divide uint8 images by 255.")


def call(name: str, function: Callable[..., object], *given: "Tensor") -> Any:
    """Return what the user's function makes of tensors; an error of shapes or types in it says so."""
    try:
        return function(*given)
    except InputError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if "memory" in str(error):
            raise
        kinds = " and ".join(f"{x.dtype} of shape {tuple(x.shape)} on {x.device}" for x in given)
        raise InputError(f"{name} does not take {kinds}: {error}") from error


def check_eps(eps: float) -> None:
    """Raise unless eps is a radius in pixel units, 0 ≤ eps ≤ 1."""
    if not is_number(eps):
        kind = "a text" if isinstance(eps, str) else f"of type {type(eps).__name__}"
        raise InputError(f"eps={eps!r} is {kind}: give a number, such as 8 / 255 without quotes.")
    if not 0 <= eps <= 1:
        raise InputError(
            f"eps={eps!r} is out of range; it counts in pixels in [0, 1], so 8/255 is {8 / 255:.4f}."
        )


Check = Callable[[str, Any], None]  # takes the name and the value of a setting, raises InputError


def must(hold: Callable[[Any], bool], demand: str) -> Check:
    """A check that `hold(value)` is true; its error ends in what the value must be."""

    def check(argument: str, value: Any) -> None:
        try:
            holds = bool(hold(value))
        except (TypeError, ValueError, RuntimeError):  # of another type, such as a text or an array
            holds = False
        if not holds:
            raise InputError(f"{argument}={value!r} must be {demand}.")

    return check


check_bool = must(lambda value: isinstance(value, bool), "True or False")


def one_of(*choices: str) -> Check:
    """A check that the value is one of these texts."""
    return lambda argument, value: check_choice(argument, value, choices)


def setting(
    default: Any, check: Check | None = None, *, called: str = "", flag: bool = False, free: bool = False
) -> Any:
    """A field of a class of `Settings`; the text below the field is its documentation.

    Args:
        default: The value where none is given.
        check: Raises unless a value is allowed; None is, where the field's type has it.
        called: The field's name in errors, where it is not the class's prefix and the field.
        flag: The setting has a flag of the field's name on the command line.
        free: A run may resume with another value: it changes how fast, how often or where, never results.
    """
    return field(default=default, metadata={"check": check, "called": called, "flag": flag, "free": free})


class Settings:
    """Base of the frozen dataclasses of settings: every field made by `setting` is checked on creation."""

    prefix: ClassVar[str] = ""  # of the fields' names in errors

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]
            value, check = getattr(self, one.name), one.metadata.get("check")
            if check and not (value is None and NoneType in get_args(one.type)):
                check(one.metadata["called"] or self.prefix + one.name, value)


def missing_extra(package: str, extra: str, purpose: str) -> InputError:
    """Return the error for an optional package that is not installed."""
    place = installed_from()
    wanted = f"intnacl[{extra}] @ {place}" if "+" in place.partition(":")[0] else f"{place}[{extra}]"
    where = ", with the path of intnacl's checkout" if place == "PATH" else ""
    return InputError(f"{purpose} needs {package}: pip install '{wanted}'{where}")


def installed_from() -> str:
    """Return the path or repository that this package comes from; PATH if that is not known."""
    import json  # all of these here, where they are seldom needed: an error's class must be quick to import
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file():
        return str(checkout)
    try:  # written by pip, except for packages from an index
        origin = json.loads(distribution("intnacl").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    url = origin.get("url", "")
    if "vcs_info" in origin:
        return f"{origin['vcs_info']['vcs']}+{url}"
    return url2pathname(urlsplit(url).path) if url.startswith("file:") else "PATH"
