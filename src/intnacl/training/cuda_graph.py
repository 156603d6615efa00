"""A CUDA graph: work on fixed memory, recorded once and then launched as one."""

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def record(
    call: Callable[[], T], device: torch.device, *, warm_ups: int = 1
) -> tuple[torch.cuda.CUDAGraph, T]:
    """Capture a call: return its graph and what it returned, memory that each replay overwrites.

    The warm-ups before it are ordinary calls on the same stream: in them libraries choose their algorithms.
    `device` is made the current one meanwhile, since otherwise the graph of a second GPU would be empty.
    Replay it with that GPU as the current one, too.
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
