"""Contrastive representation learning that is accurate and robust: the IntNaCl family."""

from intnacl.losses.integrated import IntNaClLoss

__all__ = ["IntNaClLoss", "__version__"]
__version__ = "0.1.0"
