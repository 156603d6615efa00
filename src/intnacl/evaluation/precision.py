"""True float32: TF32 rounds to 10 bits, which moves small input gradients and so the verdict of an attack."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from intnacl.evaluation.logistic import exact_matmul


@contextmanager
def exact_float32() -> Iterator[None]:
    """Matrix products and convolutions in full float32 inside; the program's own settings afterwards.

    cuDNN's search for the fastest convolution is off as well: attacks drop samples as they fall, and a search
    for every new batch size would take longer than the attack.
    """
    switches = _cudnn_switches()
    before = [getattr(owner, name) for owner, name, _ in switches]
    with exact_matmul():
        try:
            for owner, name, exact in switches:
                setattr(owner, name, exact)
            yield
        finally:
            for (owner, name, _), value in zip(switches, before, strict=True):
                setattr(owner, name, value)


def _cudnn_switches() -> list[tuple[Any, str, Any]]:
    """cuDNN's settings and their exact values, in the order in which they are set and restored.

    The older one only takes back what it gave, so under a TF32 that was set for all backends the newer ones
    must say no themselves. It goes first because it moves them, and torch refuses to read it where they
    differ from it.
    """
    cudnn: Any = torch.backends.cudnn
    search = (cudnn, "benchmark", False)
    parts = [getattr(cudnn, name) for name in ("conv", "rnn") if hasattr(cudnn, name)]
    newer = [(part, "fp32_precision", "ieee") for part in parts]
    try:
        _ = cudnn.allow_tf32
    except RuntimeError:  # the program has set the newer ones apart already
        return [search, *newer]
    return [search, (cudnn, "allow_tf32", False), *newer]
