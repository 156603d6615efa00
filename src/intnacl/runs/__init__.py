"""One run as a folder: its configuration, pretraining, measurements, result and page."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intnacl.runs.opened import Run, open_run
    from intnacl.runs.stages import run

__all__ = ["Run", "open_run", "run"]


def __getattr__(name: str) -> Any:
    """A public name, loaded when it is first asked for: reading a configuration needs no trainer."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from intnacl.runs import opened, stages

    return getattr(stages if name == "run" else opened, name)
