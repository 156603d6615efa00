"""A run on digits that takes seconds, trained and measured once per session; tests work on copies of it."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from intnacl.files import write_json
from intnacl.runs.config import RunConfig, to_dict
from intnacl.runs.folder import RunFolder
from intnacl.runs.opened import Run, open_run
from intnacl.runs.pretrain import pretrain
from intnacl.runs.resolve import resolve
from intnacl.runs.stages import train_and_measure
from intnacl.training.ranks import Ranks
from intnacl.training.stop import Stop

CPU = torch.device("cpu")
HERE = Ranks(0, 1, CPU)
SETTINGS = {
    "train.epochs": 2,
    "probe.solver": "adam",
    "probe.epochs": 20,
    "probe.lr": 1e-2,
    "evaluation.eps": (0.02, 0.1),
    "evaluation.attacks": ("fgsm", "pgd"),
    "evaluation.images": 64,
}


def config(**changes: object) -> RunConfig:
    return resolve(SETTINGS | changes, preset="simclr", device=CPU)


@cache
def trained_original() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="intnacl-tiny-")) / "run"
    atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    with redirect_stdout(None):  # or the first test would capture these lines
        assert pretrain(config(), RunFolder(folder), HERE, Stop()) is None
    return folder


@cache
def measured_original() -> Path:
    folder = trained_original().with_name("measured")
    shutil.copytree(trained_original(), folder)
    assert train_and_measure(config(), RunFolder(folder), HERE, Stop()) is None
    return folder


def trained(tmp_path: Path, **changes: object) -> Run:
    """Return an unmeasured copy of the trained run, as if started with a changed configuration."""
    return _copy(trained_original(), tmp_path / "run", changes)


def measured(tmp_path: Path, **changes: object) -> Run:
    """Return a copy of the run, measured as configured before the changes, with a changed configuration."""
    return _copy(measured_original(), tmp_path / "run", changes)


def _copy(original: Path, folder: Path, changes: dict[str, object]) -> Run:
    shutil.copytree(original, folder)
    if changes:
        write_json(RunFolder(folder).config, to_dict(config(**changes)))
    return open_run(folder, device=CPU)


def forbid_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every evaluator fail."""
    for name in ("probe.fit", "knn.score", "hcl_probe.evaluate", "robustness.verdicts"):
        monkeypatch.setattr(f"intnacl.evaluation.{name}", None)


def edit_measurements(run: Run, pattern: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change stored measurements to what an earlier version might have written, without a checksum."""
    for path in run.folder.measurements.glob(pattern):
        content = json.loads(path.read_text())
        del content["checksum"]
        change(content)
        path.write_text(json.dumps(content))


def write_images(
    root: Path, *, side: int = 8, classes: tuple[str, ...] = ("cat", "dog"), count: int = 6
) -> str:
    """Write a `folder:` data set of random images, and return its name."""
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in classes or (".",):
            folder = root / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                pixels = draw.integers(0, 256, (side, side, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return f"folder:{root}"
