"""What every test shares: one torch thread per worker, so that two workers do not fight over two cores."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
