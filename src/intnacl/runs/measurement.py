"""One stored measurement: its settings and figures, its format, and the machine on which it was made."""

import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import torch

from intnacl.attacks import autoattack
from intnacl.attacks.named import AttackRow, AttackSettings
from intnacl.evaluation import adversarial_probe, corruptions, hcl_probe, knn, probe, robustness
from intnacl.evaluation.confusion import Confusion
from intnacl.runs.heads import ProbeProtocol
from intnacl.runs.images import Checksums, MeasuredSplit

Kind = Literal["probe", "frozen_probe", "hcl_probe", "alf", "knn", "attack", "corruptions"]
KINDS: tuple[Kind, ...] = ("probe", "frozen_probe", "hcl_probe", "alf", "knn", "attack", "corruptions")
FORMATS = {
    "probe": probe.FORMAT,
    "frozen_probe": probe.FORMAT,
    "hcl_probe": hcl_probe.FORMAT,
    "alf": adversarial_probe.FORMAT,
    "knn": knn.FORMAT,
    "attack": robustness.FORMAT + probe.FORMAT - 1,  # a classifier of a new probe must be attacked again
    "corruptions": corruptions.FORMAT + probe.FORMAT - 1,
}
PACKAGES = ("intnacl", "numpy", "scikit-learn", "timm")


class Settings(TypedDict, total=False):
    """The settings that a measurement's figures depend on, apart from the images."""

    dataset: str
    encoder: str
    """SHA-256 of `encoder.safetensors`."""
    probe: Mapping[str, object]
    alf: Mapping[str, object]
    head: str
    """SHA-256 of the layer that was trained together with the encoder."""
    protocol: ProbeProtocol
    """Protocol of the layer in `head`; missing for "aff", as in earlier versions."""
    begun: str
    """SHA-256 of the encoder from which fine-tuning started."""
    labels: float
    """Share of the training images whose labels are used."""
    augment: Mapping[str, object]
    k: int | None
    weights: str
    """Votes of kNN; missing for "exp", as in earlier versions."""
    attacks: list[AttackSettings]
    """One attack; files of earlier versions may hold several."""
    corruption: str
    seed: int


class Figures(TypedDict, total=False):
    """The figures of a measurement; which of them are present depends on its kind."""

    accuracy: float
    train_accuracy: float
    accuracy_restored: float
    best_accuracy: float
    best_epoch: int
    curve: list[float]
    classes: int
    class_names: list[str]
    confusion: Confusion
    """Confusion of a linear probe; missing in files of earlier versions."""
    classifier_sha256: str
    k: int
    temperature: float
    weights: str
    checksums: Checksums
    images: Any
    """For attacks, the number of images to attack; otherwise the number of images in each split."""
    split: MeasuredSplit
    """Split of the measured images; missing in files of earlier versions, which used test images."""
    clean: float
    attacks: list[AttackRow]
    worst_case: list[AttackRow]
    zero_gradients: float
    warnings: list[str]
    by_severity: list[float]


class Underway(TypedDict):
    """The portion of images in which AutoAttack was stopped; it follows the images with verdicts."""

    stage: str
    """The last attack of AutoAttack that the portion went through."""
    right: str
    """A digit for each image, as in `Verdicts`."""


class Verdicts(TypedDict):
    """A digit for each image, 1 where it is classified right, in the order of `robustness.attack_order`."""

    clean: str
    attacked: str
    underway: NotRequired[Underway]


class Environment(TypedDict):
    """Where and when a figure was measured."""

    versions: dict[str, str]
    hardware: dict[str, str | int]
    date: str


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Figures with the settings that they depend on, the time they took, and the machine."""

    kind: Kind
    settings: Settings
    figures: Figures
    time_s: float
    environment: Environment
    format: int = 1
    """Format of the evaluator, which is raised when the same settings give other figures."""
    verdicts: Verdicts | None = None
    """Verdicts of an attack; files of earlier versions have none."""

    @property
    def dataset(self) -> str:
        """The measured data set."""
        return self.settings["dataset"]

    @property
    def protocol(self) -> ProbeProtocol:
        """The protocol of the classifier."""
        usual: ProbeProtocol = (
            "aff" if "head" in self.settings else "alf" if "alf" in self.settings else "slf"
        )
        return self.settings.get("protocol", usual)

    @property
    def is_complete(self) -> bool:
        """False for an attack that was stopped before its last image."""
        return self.verdicts is None or len(self.verdicts["clean"]) == self.figures["images"]


def has_figures(found: Measurement) -> bool:
    """Return True if a measurement has the figures of its kind, and they are percentages."""
    rows = found.figures["attacks"] if found.kind == "attack" else [found.figures]
    return all(0 <= row["accuracy"] <= 100 for row in rows) and found.settings["dataset"] != ""


def current_format(kind: Kind, settings: Settings) -> int:
    """Return the current format of the evaluators that measure with these settings."""
    own = [autoattack.FORMAT - 1 for attack in settings.get("attacks", ()) if attack["name"] == "autoattack"]
    own += [adversarial_probe.FORMAT - 1] if kind != "alf" and "alf" in settings else []
    return FORMATS[kind] + sum(own)


def plain(settings: Settings) -> Settings:
    """Return settings after a round trip through JSON, which turns tuples into lists."""
    found: Settings = json.loads(json.dumps(settings))
    return found


def environment(device: torch.device) -> Environment:
    """Return the versions, the hardware and today's date."""
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    hardware: dict[str, str | int] = {
        "device": device.type,
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
        versions["cuda"] = str(torch.version.cuda)
        versions["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return {"versions": versions, "hardware": hardware, "date": str(datetime.now(UTC).date())}
