"""What every test shares: one torch thread per worker and per process that a test starts, so that they do not
fight over the cores: threads that wait for each other there take many times as long."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from browser import Browser, headless

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    with headless(tmp_path / "profile") as page:
        yield page
