"""Switches between full float32, for figures, and TF32, which rounds to 10 bits, for attacks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch


@contextmanager
def exact_float32() -> Iterator[None]:
    """Compute matrix products and convolutions in full float32 inside; restore the program's settings.

    cuDNN's search for the fastest convolution is off as well: attacks drop the samples that they have fooled,
    and a search for every new batch size would take longer than the attack.
    """
    with exact_matmul(), _set(_cudnn_switches()):
        yield


@contextmanager
def exact_matmul() -> Iterator[None]:
    """Compute matrix products in full float32 inside, whatever TF32 setting the program trains with."""
    matmul, on_cpu = torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)
    before_on_cpu = getattr(on_cpu, "fp32_precision", None)
    try:
        before, exact = torch.get_float32_matmul_precision(), "highest"
        set_precision: Callable[[str], None] = torch.set_float32_matmul_precision
    except RuntimeError:  # the program uses the newer settings per backend, and torch forbids mixing both
        before, exact = matmul.fp32_precision, "ieee"
        set_precision = partial(setattr, matmul, "fp32_precision")
    set_precision(exact)
    try:
        yield
    finally:
        set_precision(before)
        if before_on_cpu is not None:  # set_precision changed it, too, and torch refuses settings that differ
            on_cpu.fp32_precision = before_on_cpu  # type: ignore[union-attr]


@contextmanager
def tf32_convolutions() -> Iterator[None]:
    """Compute convolutions in TF32 inside, about four times as fast on a GPU; nothing changes on a CPU."""
    cudnn: Any = torch.backends.cudnn
    newer = hasattr(cudnn, "conv")
    with _set([(cudnn.conv, "fp32_precision", "tf32") if newer else (cudnn, "allow_tf32", True)]):
        yield


@contextmanager
def _set(switches: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set each (owner, name) to its value inside, in this order, and restore it afterwards."""
    before = [getattr(owner, name) for owner, name, _ in switches]
    try:
        for owner, name, value in switches:
            setattr(owner, name, value)
        yield
    finally:
        for (owner, name, _), value in zip(switches, before, strict=True):
            setattr(owner, name, value)


def _cudnn_switches() -> list[tuple[Any, str, Any]]:
    """Return cuDNN's switches with their exact values, in the order in which they are set and restored.

    `allow_tf32` undoes only what it set itself, so where TF32 was allowed for all backends, the newer
    switches of convolutions and RNNs must be set, too. It comes first because it changes them, and torch
    refuses to read it while they differ from it.
    """
    cudnn: Any = torch.backends.cudnn
    search = (cudnn, "benchmark", False)
    parts = [getattr(cudnn, name) for name in ("conv", "rnn") if hasattr(cudnn, name)]
    newer = [(part, "fp32_precision", "ieee") for part in parts]
    try:
        _ = cudnn.allow_tf32
    except RuntimeError:  # the program has set the newer ones already
        return [search, *newer]
    return [search, (cudnn, "allow_tf32", False), *newer]
