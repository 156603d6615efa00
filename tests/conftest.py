"""What every test shares: one torch thread per worker and per process that a test starts, so that they do not
fight over the cores: threads that wait for each other there take many times as long."""

import os

import pytest
import torch

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
