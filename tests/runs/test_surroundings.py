"""Versions, hardware and date as they are."""

import os
import platform
from datetime import UTC, date, datetime

import pytest
import torch

import intnacl
from intnacl.runs.surroundings import surroundings


def test_it_tells_versions_and_processor() -> None:
    found = surroundings(torch.device("cpu"))
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["intnacl"] == intnacl.__version__
    assert found["hardware"]["cores"] == os.cpu_count()
    assert found["hardware"]["cpu"]
    assert "gpu" not in found["hardware"]
    assert abs((datetime.now(UTC).date() - date.fromisoformat(found["date"])).days) <= 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_names_the_gpu() -> None:
    found = surroundings(torch.device("cuda", 0))
    assert found["hardware"]["gpu"] == torch.cuda.get_device_name(0)
    assert found["versions"]["cuda"] == torch.version.cuda
