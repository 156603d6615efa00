"""Verdicts of attacks that are done, kept until all attacks of their part are: a stop loses one at most."""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from intnacl.data.aside import write_file
from intnacl.evaluation.named_attacks import AttackConfig
from intnacl.measure.parts import digest


class Verdicts:
    """A folder of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.earlier_s = 0.0
        """Seconds that earlier calls spent on what this one read."""

    def keep(
        self, images: Mapping[str, str], config: AttackConfig, place: int, work: Callable[[], Tensor]
    ) -> Tensor:
        """Which images from `place` on are right under an attack, (n,) bool: read, or `work()` and written.

        `images` are the checksums of the splits: verdicts on others are not read.
        """
        path = self.folder / f"{digest([images, asdict(config), place])}.json"
        found = _read(path)
        if found is not None:
            self.earlier_s += found["seconds"]
            return torch.tensor([mark == "1" for mark in found["right"]], dtype=torch.bool)
        begun = time.monotonic()
        right_n = work().cpu()
        marks = "".join("01"[mark] for mark in right_n.tolist())
        content = {"seconds": time.monotonic() - begun, "right": marks}
        write_file(path, json.dumps(content).encode())
        return right_n

    def forget(self) -> None:
        """Remove them: the part that is made of them is written."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _read(path: Path) -> dict[str, Any] | None:
    """None where there is none or only a damaged one."""
    try:
        found = json.loads(path.read_bytes())
        return {"seconds": float(found["seconds"]), "right": str(found["right"])}
    except (OSError, ValueError, TypeError, KeyError):
        return None
