"""True float32: TF32 rounds to 10 bits, which moves small input gradients and so the verdict of an attack."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from intnacl.evaluation.logistic import exact_matmul


@contextmanager
def exact_float32() -> Iterator[None]:
    """Matrix products and convolutions in full float32 inside; the program's own settings afterwards."""
    owner, name, exact = _convolution_switch()
    before = getattr(owner, name)
    with exact_matmul():
        setattr(owner, name, exact)
        try:
            yield
        finally:
            setattr(owner, name, before)


def _convolution_switch() -> tuple[Any, str, Any]:
    """The setting of cuDNN's convolutions: the older one, or the newer where the program uses that."""
    try:
        _ = torch.backends.cudnn.allow_tf32
        return torch.backends.cudnn, "allow_tf32", False
    except RuntimeError:  # torch forbids mixing the two
        return torch.backends.cudnn.conv, "fp32_precision", "ieee"  # type: ignore[attr-defined]
