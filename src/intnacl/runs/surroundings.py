"""Where and when a figure was measured."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("intnacl", "numpy", "scikit-learn", "timm", "pyautoattack")


def surroundings(device: torch.device) -> dict[str, Any]:
    """{"versions": …, "hardware": …, "date": of today}."""
    found = {name: _version(name) for name in PACKAGES}
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    versions |= {name: number for name, number in found.items() if number}
    hardware: dict[str, Any] = {
        "device": device.type, "cpu": _cpu(), "cores": os.cpu_count(), "threads": torch.get_num_threads(),
    }  # fmt: skip
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
        versions["cuda"] = str(torch.version.cuda)
        versions["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return {"versions": versions, "hardware": hardware, "date": str(datetime.now(UTC).date())}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's own name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
