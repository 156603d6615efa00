"""CUDA graphs: kernels on fixed memory that are recorded once and then launched together."""

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def record(
    call: Callable[[], T], device: torch.device, *, warm_ups: int = 1
) -> tuple[torch.cuda.CUDAGraph, T]:
    """Capture a call: return its graph and its result, whose memory each replay overwrites.

    The warm-ups before it are ordinary calls on the same stream, in which libraries choose their algorithms.
    `device` is the current device meanwhile, since otherwise the graph of a second GPU would be empty.
    It must also be the current device at each replay.
    """
    with torch.cuda.device(device):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warm_ups):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            result = call()
    return graph, result
