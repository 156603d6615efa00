"""A recorded call is replayed, on the GPU of its data."""

import pytest
import torch
from torch import Tensor

from intnacl.training.cuda_graph import record


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("number", range(max(1, min(2, torch.cuda.device_count()))))
def test_a_replay_equals_the_call_on_the_current_content_of_its_memory(number):
    device = torch.device("cuda", number)
    x, total, calls = torch.ones(4, device=device), torch.zeros((), device=device), []

    def call() -> Tensor:
        calls.append(torch.cuda.current_device())
        total.add_(x.sum())
        return x @ x

    graph, result = record(call, device, warm_ups=3)
    assert calls == [number] * 4
    assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(device)
    assert total == 3 * 4  # the recorded call itself computes nothing
    x.fill_(2.0)
    with torch.cuda.device(device):
        graph.replay()
    torch.cuda.synchronize(device)
    assert (total, result, len(calls)) == (3 * 4 + 8, 16, 4)
    before = torch.cuda.current_stream()
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 / 0, device)
    assert torch.cuda.current_stream() == before
