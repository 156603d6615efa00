"""Time and memory of a training step, for losses of the family.

Whole updates are timed as training runs them (views, adversarial view, forward, backward, optimiser), with
the images already on the device.
"""

import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

import torch

from intnacl.console import print_table
from intnacl.data.dataset import Dataset
from intnacl.errors import InputError
from intnacl.files import make_folder, write_json
from intnacl.runs.objective import build_objective
from intnacl.runs.resolve import resolve
from intnacl.training.cuda_graph import record
from intnacl.training.ranks import Ranks
from intnacl.training.step import TrainStep

WARM_UP = 3  # calls that are not timed
REPEATS = 3  # timings of each row
EPOCHS_100 = 100 * (50_000 // 256)  # steps of the paper's training on CIFAR
ROWS: dict[str, dict[str, Any]] = {
    "SimCLR, joint BN": {"encoder.norm": "joint"},
    "SimCLR, per-view BN": {},
    "MIXNCA M = 5, per-view BN": {"loss.nacl": "mixnca", "loss.negatives": "g2", "loss.num_positives": 5},
    "IntNaCl M = 5, per-view BN": {
        "loss.nacl": "mixnca", "loss.negatives": "g2", "loss.num_positives": 5, "loss.alpha": 1.0,
    },
}  # fmt: skip


class StepTimes(TypedDict):
    """A row of the table: time and memory of a step."""

    loss: str
    ms: float
    """The median of `repeats_ms`, each of which is the mean over a number of steps."""
    repeats_ms: list[float]
    views_ms: float
    """Time to make the views alone."""
    memory_gib: float | None
    way: str
    precision: str
    build_s: float
    epochs_100_min: float


def time_losses(device: torch.device, steps: int | None, only: Sequence[str], out: Path | None) -> None:
    """Time the rows whose names contain one of the texts `only`, or all rows, and print their table.

    `out` is rewritten after each row, so that no row is lost when a later one fails.
    """
    for text in only:
        if not any(text.lower() in name.lower() for name in ROWS):
            raise InputError(f"--only {text!r} matches no row; the rows are {', '.join(map(repr, ROWS))}.")
    if steps is None:
        steps = 50 if device.type == "cuda" else 1  # on a CPU, a step takes seconds
    if steps < 1:
        raise InputError(f"steps={steps} times nothing: give 1 or more.")
    if out and out.is_dir():
        raise InputError(f"--out {out} is a folder: give a JSON file.")
    if out:
        make_folder(out.parent)  # a path that cannot be written must fail before the rows take minutes
    print(f"{hardware(device)}, 256 pairs a step, 32x32, ResNet-18")
    rows: list[StepTimes] = []
    try:
        for name in ROWS:
            if only and not any(text.lower() in name.lower() for text in only):
                continue
            print(f"timing {name} …", file=sys.stderr)
            rows.append(measure(name, device, steps=steps))
            print(f"  {rows[-1]['ms']:.2f} ms per step", file=sys.stderr)  # shown even if a later row fails
            if out:
                write_json(out, {"hardware": hardware(device), "rows": rows})
    finally:
        heads = ["loss", "ms per step", "of which views", "100 epochs, min", "memory, GiB", "mode"]
        lines = []
        for row in rows:
            times = f"{row['ms']:.2f} ({min(row['repeats_ms']):.2f} to {max(row['repeats_ms']):.2f})"
            share = f"{row['views_ms']:.2f} ({100 * row['views_ms'] / row['ms']:.0f} %)"
            memory = f"{row['memory_gib']:.1f}" if row["memory_gib"] else "–"
            way = f"{row['precision']}, {row['way']}"
            lines.append([row["loss"], times, share, f"{row['epochs_100_min']:.2f}", memory, way])
        print_table("", heads, lines, text=len(heads))


def measure(name: str, device: torch.device, *, steps: int = 50) -> StepTimes:
    """Time a row's loss with the recipe `paper` at CIFAR's size."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    config, here = resolve(ROWS[name], recipe="paper", device=device), Ranks(0, 1, device)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (10_000, 3, 32, 32), generator=generator, dtype=torch.uint8)
    data = Dataset(name="random", split="train", images=images, labels=None, classes=())
    train_step = TrainStep(build_objective(config, data, here), images, None, config.train, here)
    begun = time.perf_counter()
    mode = train_step.prepare(print)
    built = time.perf_counter() - begun
    index_1B = torch.randint(len(images), (1, config.train.batch_size), device=device)
    repeats = [
        time_calls(lambda step: train_step(index_1B, step), device, steps, warm_up=0 if again else WARM_UP)
        for again in range(REPEATS)
    ]
    gib = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    views, clock = train_step.objective.parts.views, torch.zeros((), dtype=torch.int64, device=device)

    def make_views(_: int) -> object:
        return views(train_step.source.read(0, index_1B[0]), train_step.rows, clock)

    if mode.captured:
        captured, _ = record(lambda: make_views(0), device)
        views_ms = time_calls(lambda _: captured.replay(), device, steps)
    else:
        views_ms = time_calls(make_views, device, steps)
    milliseconds = statistics.median(repeats)
    return {
        "loss": name,
        "ms": milliseconds,
        "repeats_ms": repeats,
        "views_ms": views_ms,
        "memory_gib": gib,
        "way": str(mode),
        "precision": config.train.precision,
        "build_s": built,
        "epochs_100_min": milliseconds * EPOCHS_100 / 60_000,
    }


def hardware(device: torch.device) -> str:
    """Name the hardware and the versions on which a time was measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}"


def time_calls(
    call: Callable[[int], object], device: torch.device, steps: int, *, warm_up: int = WARM_UP
) -> float:
    """Return the mean milliseconds per call, after `warm_up` calls that are not timed."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for step in range(warm_up):
        call(step)
    wait()
    begun = time.perf_counter()
    for step in range(steps):
        call(step)
    wait()
    return 1000 * (time.perf_counter() - begun) / steps
