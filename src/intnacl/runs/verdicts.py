"""Verdicts of attacks that are done, kept until all attacks of their part are: a stop loses one at most."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from intnacl.attacks.named import Attack
from intnacl.runs.measurements import measured, read_part

KIND = "verdict"


class Verdicts:
    """Those on one data set, each a part below a folder of their own."""

    def __init__(self, folder: Path, dataset: str, device: torch.device) -> None:
        self.folder, self.dataset, self.device = folder, dataset, device
        self.earlier_s = 0.0
        """Seconds that earlier calls spent on what this one read."""

    def keep(
        self, images: Mapping[str, str], attack: Attack, place: int, work: Callable[[], Tensor]
    ) -> Tensor:
        """Which images from `place` on are right under an attack, (n,) bool: read, or `work()` and written.

        `images` are the checksums of the splits: verdicts on others are not read.
        """
        settings = {
            "dataset": self.dataset, "images": dict(images), "attack": attack.settings(), "place": place,
        }  # fmt: skip
        found = read_part(self.folder, KIND, settings)
        if found is not None:
            self.earlier_s += found.time_s
        else:
            found = measured(self.folder, KIND, settings, self.device, lambda: {"right": _marks(work())})
        return torch.tensor([mark == "1" for mark in found.figures["right"]], dtype=torch.bool)

    def forget(self) -> None:
        """Remove them: the part that is made of them is written."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _marks(right_n: Tensor) -> str:
    """0110 …, a letter for each image."""
    return "".join("01"[mark] for mark in right_n.tolist())
