"""How fast a step is: milliseconds, memory and the share of the data path, for losses of the family.

Timed are whole updates as training runs them (views, adversarial view, forward, backward, optimiser) on
images that lie on the device.
"""

import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from intnacl.data.datasets import Dataset
from intnacl.errors import InputError
from intnacl.runs.pretrain import build_objective
from intnacl.runs.resolve import resolve
from intnacl.training.cuda_graph import record
from intnacl.training.ranks import Ranks
from intnacl.training.step import TrainStep

WARM_UP = 3  # calls before the clock starts
REPEATS = 3  # how often a row's steps are timed
EPOCHS_100 = 100 * (50_000 // 256)  # steps of the paper's training on CIFAR
ROWS: dict[str, dict[str, Any]] = {
    "SimCLR, joint BN": {"encoder.norm": "joint"},
    "SimCLR, per-view BN": {},
    "MIXNCA M = 5, per-view BN": {"loss.nacl": "mixnca", "loss.negatives": "g2", "loss.num_positives": 5},
    "IntNaCl M = 5, per-view BN": {
        "loss.nacl": "mixnca", "loss.negatives": "g2", "loss.num_positives": 5, "loss.alpha": 1.0,
    },
}  # fmt: skip


def chosen(parts: tuple[str, ...]) -> list[str]:
    """The rows whose names hold one of these texts, upper or lower case; all of them where there is none."""
    found = [name for name in ROWS if any(part.lower() in name.lower() for part in parts)]
    unknown = [part for part in parts if not any(part.lower() in name.lower() for name in ROWS)]
    if unknown:
        raise InputError(
            f"--only {unknown[0]!r} is in no row's name; there are {', '.join(map(repr, ROWS))}."
        )
    return found if parts else list(ROWS)


def measure(name: str, device: torch.device, *, steps: int = 50) -> dict[str, Any]:
    """One row of the table: a loss with the recipe `paper` at CIFAR's size on `device`.

    `ms` is the median of the times in `repeats_ms`, each the mean of so many steps.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    config = resolve(ROWS[name], recipe="paper", device=device)
    generator, size = torch.Generator().manual_seed(0), config.train.batch_size
    images = torch.randint(0, 256, (10_000, 3, 32, 32), generator=generator, dtype=torch.uint8)
    data, here = (
        Dataset(name="random", split="train", images=images, labels=None, classes=()),
        Ranks(0, 1, device),
    )
    train_step = TrainStep(build_objective(config, data, here), images, None, config.train, here)
    begun = time.perf_counter()
    mode = train_step.prepare(print)
    built = time.perf_counter() - begun
    index = torch.randint(len(images), (1, size), device=device)
    repeats = [
        time_calls(lambda step: train_step(index, step), device, steps, warm_up=0 if again else WARM_UP)
        for again in range(REPEATS)
    ]
    milliseconds = statistics.median(repeats)
    gib = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    views = _views_alone(train_step, index[0], device, steps, graph=mode.captured)
    return {
        "loss": name, "ms": milliseconds, "repeats_ms": repeats, "views_ms": views,
        "memory_gib": gib, "way": str(mode), "precision": config.train.precision, "build_s": built,
        "epochs_100_min": milliseconds * EPOCHS_100 / 60_000,
    }  # fmt: skip


def hardware(device: torch.device) -> str:
    """The machine and the versions that a figure holds for."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}"


def time_calls(
    call: Callable[[int], Any], device: torch.device, steps: int, *, warm_up: int = WARM_UP
) -> float:
    """Milliseconds a call, after a few that are not counted."""
    for step in range(warm_up):
        call(step)
    _wait(device)
    begun = time.perf_counter()
    for step in range(steps):
        call(step)
    _wait(device)
    return 1000 * (time.perf_counter() - begun) / steps


def _views_alone(
    train_step: TrainStep, index: torch.Tensor, device: torch.device, steps: int, *, graph: bool
) -> float:
    views, clock = train_step.objective.parts.views, torch.zeros((), dtype=torch.int64, device=device)

    def call(_: int) -> Any:
        return views(train_step.images[index], train_step.rows, clock)

    if not graph:
        return time_calls(call, device, steps)
    captured, _ = record(partial(call, 0), device)
    return time_calls(lambda _: captured.replay(), device, steps)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
