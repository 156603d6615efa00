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

MAX_LISTED = 20  # the most choices that an error lists
MAX_COUNT = 2**31 - 1  # the largest count, such as of epochs, images or steps


def printable(text: str) -> str:
    """Return text that can be printed, drawn and written on one line.

    Line breaks, terminal codes, and bytes that are not UTF-8 (file names may hold them) are escaped.
    """
    return "".join(_escaped(c) if category(c) in ("Cc", "Cs", "Zl", "Zp") else c for c in text)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # Python's stand-in for a byte that is not UTF-8
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
    """A problem in the user's input that stops nothing: the command line shows it on one line."""

    def __str__(self) -> str:
        return " ".join(printable(str(line)) for line in self.args)


def check_choice(argument: str, value: str, choices: Iterable[str]) -> None:
    """Raise unless `value` is one of `choices`; the error suggests similar ones, and lists all or a few."""
    known = sorted(choices)
    if not isinstance(value, str) or value not in known:
        by_lower = {name.lower(): name for name in known}
        near = [by_lower[name] for name in get_close_matches(str(value).lower(), by_lower, n=3)]
        hint = f"; did you mean {near[0]!r}?" if near else "."
        shown = known if len(known) <= MAX_LISTED else near or known[:MAX_LISTED]
        listed = [repr(name) if "," in name else name for name in shown]
        if len(shown) < len(known):
            listed.append(f"{len(known) - len(shown)} more")
        raise InputError(f"{argument}={value!r} is unknown{hint} Choose one of: {', '.join(listed)}.")


def check_count(argument: str, value: int, low: int = 1, high: int = MAX_COUNT) -> None:
    """Raise unless `value` is a whole number from `low` to `high`, by default the largest int32."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{argument}={value!r} must be a whole number from {low} to {high:,}.")


def is_number(value: object) -> TypeGuard[float]:
    """True for Python and NumPy numbers that a tensor can be multiplied by."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return whole or (isinstance(value, Real) and not isinstance(value, Rational))


def has_floats(x: "Tensor") -> bool:
    """True if x has a floating dtype that torch can compute in, which the 8-bit ones are not."""
    return x.is_floating_point() and x.dtype.itemsize > 1


def check_number(argument: str, value: float, *, zero: bool = True, high: float = 3e38) -> None:
    """Raise unless `value` is from 0 (above 0 if not `zero`) to `high`; 3e38 is near float32's limit."""
    if not (is_number(value) and 0 <= value <= high) or (value == 0 and not zero):
        limit = f"{high:g}".replace("+", "")
        raise InputError(
            f"{argument}={value!r} must be a number {'from 0' if zero else 'above 0, up'} to {limit}."
        )


def check_dense(argument: str, value: object, expected: str) -> None:
    """Raise unless `value` is a dense tensor: not a sparse, nested, quantized or meta one."""
    from torch import Tensor, strided

    if not isinstance(value, Tensor):
        raise InputError(f"{argument} is a {type(value).__name__}: expected a tensor of {expected}.")
    if value.layout != strided or value.is_nested or value.is_quantized or value.is_meta:
        kind = "meta" if value.is_meta else "quantized" if value.is_quantized else value.layout
        raise InputError(f"{argument} is a {kind} tensor: expected a dense one of {expected}.")


def check_floats(who: str, x: "Tensor") -> None:
    """Raise unless x holds floats; `who` begins the error's requirement, such as "attacks need"."""
    if not has_floats(x):
        raise InputError(f"x has dtype {x.dtype}; {who} float pixels in [0, 1]: divide uint8 images by 255.")


def call(name: str, function: Callable[..., object], *given: "Tensor") -> Any:
    """Call the user's function on tensors; an error about shapes or types in it becomes an InputError."""
    try:
        return function(*given)
    except InputError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if "memory" in str(error):
            raise
        kinds = " and ".join(f"{x.dtype} of shape {tuple(x.shape)} on {x.device}" for x in given)
        raise InputError(f"{name} does not accept {kinds}: {error}") from error


def check_eps(eps: float) -> None:
    """Raise unless eps is a radius in pixel units, 0 ≤ eps ≤ 1."""
    if not is_number(eps):
        kind = "a string" if isinstance(eps, str) else f"of type {type(eps).__name__}"
        raise InputError(f"eps={eps!r} is {kind}: give a number, such as 8 / 255 without quotes.")
    if not 0 <= eps <= 1:
        raise InputError(
            f"eps={eps!r} is out of range: give a radius in pixel values from 0 to 1, such as 8 / 255."
        )


Check = Callable[[str, Any], None]  # takes the name and the value of a setting, raises InputError


def must(hold: Callable[[Any], bool], demand: str) -> Check:
    """Return a check that `hold(value)` is true; its error says that the value must be `demand`."""

    def check(argument: str, value: Any) -> None:
        try:
            holds = bool(hold(value))
        except (TypeError, ValueError, RuntimeError):  # value has another type, such as a string or an array
            holds = False
        if not holds:
            raise InputError(f"{argument}={value!r} must be {demand}.")

    return check


check_bool = must(lambda value: isinstance(value, bool), "True or False")


def one_of(*choices: str) -> Check:
    """Return a check that the value is one of these strings."""
    return lambda argument, value: check_choice(argument, value, choices)


def setting(
    default: Any, check: Check | None = None, *, called: str = "", flag: bool = False, free: bool = False
) -> Any:
    """Return a field of a `Settings` class; the string below the field documents it.

    Args:
        default: The default value.
        check: Raises unless a value is allowed. None is always allowed if the field's type includes it.
        called: The field's name in errors; by default the class's prefix and the field's name.
        flag: The command line has a flag with the field's name.
        free: A run may resume with another value: it affects speed, frequency or place, never results.
    """
    return field(default=default, metadata={"check": check, "called": called, "flag": flag, "free": free})


class Settings:
    """Base of the frozen dataclasses of settings, which checks every field made by `setting` on creation."""

    prefix: ClassVar[str] = ""  # put before the fields' names in errors

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]
            value, check = getattr(self, one.name), one.metadata.get("check")
            if check and not (value is None and NoneType in get_args(one.type)):
                check(one.metadata["called"] or self.prefix + one.name, value)


def missing_extra(package: str, extra: str, purpose: str) -> InputError:
    """Return the error for an optional package that is not installed."""
    place = installed_from()
    wanted = f"intnacl[{extra}] @ {place}" if "+" in place.partition(":")[0] else f"{place}[{extra}]"
    where = ", where PATH is the path of intnacl's checkout" if place == "PATH" else ""
    return InputError(f"{purpose} needs {package}: pip install '{wanted}'{where}")


def installed_from() -> str:
    """Return the path or repository that this package was installed from; "PATH" if that is not known."""
    import json  # all imported here, where they are rarely needed: this module must be quick to import
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file():
        return str(checkout)
    try:  # pip writes this file, except for packages from an index
        origin = json.loads(distribution("intnacl").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    url = origin.get("url", "")
    if "vcs_info" in origin:
        return f"{origin['vcs_info']['vcs']}+{url}"
    return url2pathname(urlsplit(url).path) if url.startswith("file:") else "PATH"
