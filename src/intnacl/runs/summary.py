"""One run as a row of a list, read from its folder in milliseconds, in any state of the run."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from intnacl.data.datasets import local_name
from intnacl.errors import InputError
from intnacl.files import read_file
from intnacl.models.weights import checksum_file
from intnacl.runs.config import RunConfig, flatten, loss_name, to_dict
from intnacl.runs.folder import RunFolder
from intnacl.runs.images import MeasuredSplit
from intnacl.runs.measurement import Measurement
from intnacl.runs.measurements import Measurements
from intnacl.runs.page import attack_heads
from intnacl.runs.result import Result, radius_text
from intnacl.training.journal import SPENT, last_record

Progress = Literal["new", "training", "stopped", "trained", "measuring", "finished"]
SPLIT_NAMES: dict[MeasuredSplit, str] = {"test": "test", "holdout": "held-out"}


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """The facts about a run in a list. Figures are in percent on its own data set; None: not measured."""

    folder: RunFolder
    name: str
    """Path of the run below the listed folder."""
    config: RunConfig
    progress: Progress
    """"stopped": no process trains the run, and epochs are left; "trained": it has no result yet."""
    epochs_done: int
    minutes: float | None
    """Minutes of training and, for a finished run, of all its measurements."""
    changed: float
    """Last change of its log, configuration or result, in seconds since 1970."""
    result: Result | None
    split: MeasuredSplit | None
    """Split of the images that its accuracies are on."""
    clean: float | None
    fgsm: float | None
    pgd: float | None
    knn: float | None

    @property
    def data(self) -> str:
        """The data set; a path below the current folder is shown relative to it."""
        return local_name(self.config.dataset)

    @property
    def loss(self) -> str:
        """The preset, or the loss with the settings that the paper's tables name."""
        name, loss = loss_name(self.config), self.config.loss
        if self.config.objective != "contrastive" or not name.startswith(loss.nacl):
            return name
        parts = [name]
        if loss.num_positives > 1:
            parts.append(f"M={loss.num_positives}")
            parts += [f"λ={loss.lam:g}"] * (loss.nacl == "mixnca")
        parts += [f"α={loss.alpha:g}"] * (loss.alpha > 0)
        return " ".join(parts)

    @property
    def epochs(self) -> str:
        """The number of epochs of a fully trained run, else "12/100"."""
        wanted = self.config.train.epochs
        return str(wanted) if self.epochs_done >= wanted else f"{self.epochs_done}/{wanted}"

    @property
    def attacks(self) -> str | None:
        """The radius of FGSM and PGD, and what distinguishes them: "8/255 on 500 images, PGD tuned"."""
        if self.result is None or self.fgsm is self.pgd is None:
            return None
        tuned = [attack_heads(self.result)[1]] if self.pgd is not None else []
        return ", ".join([radius_text(self.result).removeprefix("eps "), *(set(tuned) - {"PGD"})])

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Every setting of the run by its dotted name."""
        return dict(flatten(to_dict(self.config)))


def find_runs(place: Path) -> list[RunFolder]:
    """Return the runs in a folder and in all folders below it, sorted by path.

    Inside a run, only the teacher that it trained for itself is searched for. An exported encoder does not
    count as a run: it has a configuration and weights, but no log.
    """
    if not place.is_dir():
        raise InputError(f"{place} is not a folder: give one that holds runs.")
    found = []
    for path, folders, files in os.walk(place):
        folder = RunFolder(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if folder.config.name in files:
            folders[:] = [name for name in folders if name == folder.teacher.name]
            if folder.log.name in files or not {folder.encoder.name, "README.md"} & set(files):
                found.append(folder)
    return sorted(found, key=lambda folder: folder.path)


def read_runs(place: Path, say: Callable[[str], None] = lambda text: None) -> list[RunSummary]:
    """Return a summary of every run in a folder; runs that cannot be read are reported to `say`."""
    runs = []
    for folder in find_runs(place):
        try:
            runs.append(summarize_run(folder, place))
        except InputError as error:
            say(f"left out: {error}")
    if not runs:
        raise InputError(f"there is no run in {place}: `intnacl run --out {place / 'mine'}` makes one.")
    return runs


def summarize_run(folder: RunFolder, place: Path | None = None) -> RunSummary:
    """Read the summary of one run; its name is its path below `place`, by default the folder's name."""
    config, result, last = folder.read_config(), folder.read_result(), last_record(folder.log) or {}
    figures: dict[str, Any] = {}
    if result is not None:
        figures |= result["accuracy"].get(config.dataset, {})
        own_knn = [row for row in result.get("knn", []) if row["dataset"] == config.dataset]
        figures["knn"] = own_knn[0]["accuracy"] if own_knn else None  # the first is the run's own
        seconds = result["time_s"].get("total", 0.0)
    else:
        seconds = sum(last.get(name, 0.0) for name in SPENT)
        for kind, found in _measured_so_far(folder, config):
            figures |= {kind: found.figures["accuracy"], "split": found.figures.get("split", "test")}
    files = [file for file in (folder.log, folder.config, folder.result) if file.exists()]
    name = folder.path.name or folder.path.absolute().name
    if place is not None and folder.path != place:
        name = folder.path.relative_to(place).as_posix()
    return RunSummary(
        folder=folder,
        name=name,
        config=config,
        progress=_progress(folder, config, result, int(last.get("epoch", 0))),
        epochs_done=int(last.get("epoch", 0)),
        minutes=seconds / 60 or None,
        changed=max(file.stat().st_mtime for file in files),
        result=result,
        split=figures.get("split", "test") if "clean" in figures or figures.get("knn") else None,
        clean=figures.get("clean"),
        fgsm=figures.get("fgsm"),
        pgd=figures.get("pgd"),
        knn=figures.get("knn"),
    )


def _measured_so_far(folder: RunFolder, config: RunConfig) -> Iterator[tuple[str, Measurement]]:
    """Yield the accuracies of the own probe and the own kNN of a trained run that has no result yet."""
    noted = checksum_file(folder.encoder)
    if not (folder.encoder.exists() and noted.is_file() and folder.measurements.is_dir()):
        return
    words = read_file(noted).decode(errors="replace").split()
    measurements, wanted = Measurements(folder, words[0] if words else "", config), config.evaluation
    probe = measurements.classifier_settings(config.dataset)
    if found := measurements.find("probe", probe):
        yield "clean", found
    knn = measurements.knn_settings(config.dataset, wanted.knn_k, wanted.knn_weights)
    if found := measurements.find("knn", knn):
        yield "knn", found


def _progress(folder: RunFolder, config: RunConfig, result: Result | None, epochs_done: int) -> Progress:
    if result is not None:
        return "finished"
    working = folder.holder() is not None
    if folder.encoder.exists() or epochs_done >= config.train.epochs:  # some records keep only the log
        return "measuring" if working else "trained"
    if working:
        return "training"
    return "stopped" if epochs_done else "new"
