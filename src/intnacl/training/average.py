"""An exponential moving average of a model's weights, on their device.

Shapes: t updates so far, w the model's floating tensors, ā their averages.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """ā ← d·ā + (1 − d)·w after each update, with d = min(decay, (1 + t) / (10 + t)).

    The smaller d of the first updates lets ā forget the initial weights, as in TensorFlow's
    ExponentialMovingAverage. The running statistics of batch norm are averaged like the weights: to first
    order, the average of statistics is the statistics of the average weights, while the model's current
    statistics belong to its current weights and fit ā less well.

    Weights, averages and t keep their addresses in memory, which a captured graph relies on.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        own = model.state_dict()  # shares the model's memory
        self._own = {name: value for name, value in own.items() if value.is_floating_point()}
        self.values = {name: value.clone() for name, value in self._own.items()}
        self.updates = torch.zeros((), dtype=torch.int64, device=next(iter(self._own.values())).device)

    @torch.no_grad()
    def update(self) -> None:
        """Update the averages with the model's current weights."""
        averages, own = list(self.values.values()), list(self._own.values())
        share = 1 - ((1 + self.updates) / (10 + self.updates)).clamp(max=self.decay)
        # ā + share·(w − ā): torch._foreach_lerp_ does not accept a tensor as the share.
        changes = torch._foreach_sub(own, averages)
        torch._foreach_mul_(changes, share)
        torch._foreach_add_(averages, changes)
        self.updates += 1

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Put the averages into the model inside the block."""
        own = list(self._own.values())
        before = [value.clone() for value in own]
        torch._foreach_copy_(own, list(self.values.values()))
        try:
            yield
        finally:
            torch._foreach_copy_(own, before)

    def load(self, values: Mapping[str, Tensor], updates: Tensor) -> None:
        """Load the averages of a checkpoint."""
        for name, value in self.values.items():
            value.copy_(values[name])
        self.updates.copy_(updates)
