"""One run as a folder: its configuration, pretraining, measurements, result and page."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intnacl.runs.measure import run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    """A public name, loaded when it is first asked for: reading a configuration needs no trainer."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from intnacl.runs import measure

    return getattr(measure, name)
