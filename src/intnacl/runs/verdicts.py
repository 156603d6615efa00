"""Verdicts of attacks that are done, kept until all attacks of their part are: a stop loses one at most."""

import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from intnacl.attacks.named import Attack
from intnacl.evaluation import robustness
from intnacl.runs.folder import RunFolder
from intnacl.runs.measurements import measured, read_part

KIND = "verdict"


class Verdicts:
    """Those on one data set, each a part below a folder of their own."""

    def __init__(self, folder: Path, dataset: str, device: torch.device) -> None:
        self.folder, self.dataset, self.device = RunFolder(folder), dataset, device
        self.clean: dict[int, Tensor] = {}
        self.right: dict[Attack, dict[int, Tensor]] = {}
        self.earlier_s = 0.0
        """Seconds that earlier calls spent on what this one read."""

    def read(self, images: Mapping[str, str], attacks: Iterable[Attack]) -> dict[Attack, int]:
        """Read what earlier calls kept, and return how many images each attack is done with.

        `images` are the checksums of the splits: verdicts on others are not read.
        """
        done = {}
        for attack in attacks:
            done[attack], self.right[attack] = 0, {}
            while found := read_part(self.folder, KIND, self._settings(images, attack, done[attack])):
                if "clean" not in found.figures:
                    break
                right, clean = (_tensor(found.figures[key]) for key in ("right", "clean"))
                self.right[attack][done[attack]], self.clean[done[attack]] = right, clean
                self.earlier_s += found.time_s
                done[attack] += len(clean)
        return done

    def keep(self, images: Mapping[str, str], found: robustness.Verdicts, began: float) -> None:
        """Write these verdicts, on which work began at that time of the monotonic clock."""
        self.right.setdefault(found.attack, {})[found.start] = found.right
        self.clean[found.start] = found.clean
        marks = {"right": _marks(found.right), "clean": _marks(found.clean)}
        settings = self._settings(images, found.attack, found.start)
        spent = time.monotonic() - began
        measured(self.folder, KIND, settings, self.device, lambda: marks, again=True, earlier=lambda: spent)

    def _settings(self, images: Mapping[str, str], attack: Attack, place: int) -> dict[str, Any]:
        return {
            "dataset": self.dataset, "images": dict(images), "attack": attack.settings(), "place": place,
        }  # fmt: skip

    def figures(self, zero: float) -> robustness.RobustnessFigures:
        """The figures that follow from all verdicts."""
        right = {attack: torch.cat([found[k] for k in sorted(found)]) for attack, found in self.right.items()}
        return robustness.figures(torch.cat([self.clean[k] for k in sorted(self.clean)]), right, zero)

    def forget(self) -> None:
        """Remove them: the part that is made of them is written."""
        shutil.rmtree(self.folder.path, ignore_errors=True)


def _marks(right_n: Tensor) -> str:
    """0110 …, a letter for each image."""
    return "".join("01"[mark] for mark in right_n.tolist())


def _tensor(marks: str) -> Tensor:
    return torch.tensor([mark == "1" for mark in marks], dtype=torch.bool)
