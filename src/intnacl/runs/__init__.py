"""One run as a folder: its configuration, pretraining, measurements, result and page."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intnacl.runs.opened import Run, open_run
    from intnacl.runs.stages import run

__all__ = ["Run", "open_run", "run"]


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that reading a configuration does not import the trainer."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from intnacl.runs import opened, stages

    return getattr(stages if name == "run" else opened, name)
