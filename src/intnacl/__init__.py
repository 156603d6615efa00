"""Contrastive representation learning that is accurate and robust: the IntNaCl family."""

from typing import Any

from intnacl.losses.integrated import IntNaClLoss

__all__ = ["IntNaClLoss", "__version__", "from_pretrained"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`intnacl.from_pretrained`, loaded when it is first asked for: the losses need torch alone."""
    if name == "from_pretrained":
        from intnacl.weights import from_pretrained

        return from_pretrained
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
