"""Settings that all tests share.

Each worker, and each process that a test starts, has one torch thread: threads that compete for the cores
would take many times as long.
"""

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
