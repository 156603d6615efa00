"""Contrastive representation learning that is accurate and robust: the IntNaCl family."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intnacl import runs as runs
    from intnacl.losses.integrated import IntNaClLoss
    from intnacl.models.shipped import pretrained
    from intnacl.runs.opened import from_pretrained, open_run

__all__ = ["IntNaClLoss", "__version__", "from_pretrained", "open_run", "pretrained"]
__version__ = "0.1.0"
MODULE_OF = {
    "IntNaClLoss": "intnacl.losses.integrated",
    "from_pretrained": "intnacl.runs.opened",
    "open_run": "intnacl.runs.opened",
    "pretrained": "intnacl.models.shipped",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first access: the losses need only torch, and `--help` not even that."""
    if name == "runs":  # for `intnacl.runs.run`
        return import_module("intnacl.runs")
    if name not in MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
