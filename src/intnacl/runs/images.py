"""The images of a run: each split is read, checked and hashed once for all stages of the run."""

import math
import os
import warnings
from pathlib import Path
from typing import Literal, NamedTuple, NotRequired, TypedDict

import torch
from torch import Tensor

from intnacl.data import Dataset, load
from intnacl.data.datasets import absolute_name, check_stored_name, is_at_path
from intnacl.data.streamed import Images, StreamedImages
from intnacl.errors import InputError, InputWarning
from intnacl.runs.config import RunConfig
from intnacl.training.ranks import Ranks, largest

MeasuredSplit = Literal["test", "holdout"]
RESIZED = ("folder", "parquet", "webdataset")  # data sets whose images are resized on loading


class Checksums(TypedDict):
    """Checksums of the images and labels of whole splits."""

    train: str
    test: NotRequired[str]
    """Missing if measurements are on held-out training images."""


class LabelledPair(NamedTuple):
    """Training images and images to measure on, with the same classes and the same size."""

    train: Dataset
    queries: Dataset
    """The test images, or training images that were held out."""

    @property
    def checksums(self) -> Checksums:
        """The checksums of the splits on disk from which the images come."""
        checksums: Checksums = {"train": self.train.checksum}
        if self.split == "test":
            checksums["test"] = self.queries.checksum
        return checksums

    @property
    def split(self) -> MeasuredSplit:
        """The split of the images to measure on."""
        return "holdout" if self.queries.split == "holdout" else "test"


class RunImages:
    """The images that a run is trained and measured on, loaded when they are first asked for.

    If the run holds images out, each data set's split "train" lacks them, and they are its split "holdout",
    on which everything is measured instead of "test".

    The run's own data set stays in memory, together with at most one transfer data set. `side` is the side of
    the images that the run's encoder takes; None: the side of the run's own training images.
    """

    def __init__(self, config: RunConfig, *, side: int | None = None) -> None:
        self.own, self.transfer = config.dataset, config.evaluation.transfer
        self.side, self._root, self._size = side, config.root, config.size
        self.stream = config.stream
        """always or never once it is decided; until then auto, under which every set is resident."""
        self.holdout = config.holdout
        self._splits: dict[tuple[str, str], Dataset] = {}
        self._checksums: dict[str, Checksums] = {}
        self.classes: dict[str, int] = {}
        """Data set -> number of its classes, for the data sets that were checked."""

    @property
    def measured_split(self) -> MeasuredSplit:
        """The split that everything is measured on."""
        return "holdout" if self.holdout else "test"

    def decide(self, begun: RunConfig | None, here: Ranks) -> str:
        """Decide whether images are streamed if the setting is auto, and return the reason in one line.

        A run that was started before keeps its decision. All ranks decide alike. The line is empty if there
        was nothing to decide, or if a named data set, whose size is known, stays resident.
        """
        if self.stream != "auto":
            return ""
        if begun is not None:
            self.stream = "never" if begun.stream == "auto" else begun.stream
            return ""
        free = -largest(-free_memory(here.device), here)
        train = self._load(self.own, "train", self._size, room=free / 2)
        images = train.images
        streams = isinstance(images, StreamedImages) or (
            images.nbytes > free / 2 and here.device.type != "cpu"
        )
        self.stream = "always" if streams else "never"
        self._keep(absolute_name(self.own), "train", train)
        if not streams and not is_at_path(self.own):
            return ""
        verb, than = ("streamed", "more than") if streams else ("resident", "at most")
        gib = images.shape.numel() / 2**30
        return (
            f"images are {verb}: decoded they take {gib:.1f} GiB, {than} half of the {free / 2**30:.1f} GiB "
            f"free on {here.device}"
        )

    def training(self) -> Dataset:
        """Return the images that the run is trained on, labelled or not, without those held out."""
        return self.split(self.own, "train")

    def split(self, name: str, split: str) -> Dataset:
        """Return the images of a split, labelled or not, at the encoder's image size if that is known."""
        if split == "holdout" and not self.holdout:
            raise InputError("split='holdout': this run holds no images out. Choose train or test.")
        key, own = (absolute_name(name), split), absolute_name(self.own)
        if key not in self._splits:
            check_stored_name(name)
            for other in {loaded for loaded, _ in self._splits} - {own, key[0]}:
                self.release(other)
            is_resized = name.partition(":")[0] in RESIZED
            size = self._size if key[0] == own else self.side if is_resized else None
            on_disk = "train" if split == "holdout" else split
            dataset = self._load(name, on_disk, size, room=0 if self.stream == "always" else math.inf)
            height, width = dataset.images.shape[2:]
            if self.side is not None and (height, width) != (self.side, self.side):
                raise InputError(
                    f"dataset {name!r} has {height}×{width} {split} images, but the encoder was trained on "
                    f"{self.side}×{self.side}: choose a data set of that size, or folder:PATH, which is "
                    "resized."
                )
            self._keep(key[0], on_disk, dataset)
        return self._splits[key]

    def _load(self, name: str, split: str, size: int | None, *, room: float) -> Dataset:
        return load(name, split, self._root, size=size, room=room)

    def _keep(self, name: str, split: str, dataset: Dataset) -> None:
        """Keep a loaded split, divided in two if images are held out."""
        divided = dataset.hold_out(self.holdout) if self.holdout and split == "train" else (dataset,)
        for part in divided:
            self._splits[name, part.split] = part

    def labelled(self, name: str) -> LabelledPair:
        """Return the images to train and to measure on; raise if nothing can be measured on them."""
        train = _check_labels(self.split(name, "train"))
        if self.side is None:
            self.side = image_side(train)
        queries = _check_labels(self.split(name, self.measured_split))
        if train.classes != queries.classes:
            missing = sorted(set(train.classes) ^ set(queries.classes))
            raise InputError(
                f"dataset {name!r}: its training and test images have different classes "
                f"({', '.join(missing[:5]) or 'in another order'}): give both the same class folders or "
                "names."
            )
        return LabelledPair(train, queries)

    def checksums(self, name: str) -> Checksums:
        """Return the checksums of a data set's `labelled` images; they stay known after its release."""
        key = absolute_name(name)
        if key not in self._checksums:
            self._checksums[key] = self.labelled(name).checksums
        return self._checksums[key]

    def is_loaded(self, name: str) -> bool:
        """Return True if the `labelled` images of a data set are in memory."""
        return {
            (absolute_name(name), split) for split in ("train", self.measured_split)
        } <= self._splits.keys()

    def release(self, name: str) -> None:
        """Drop a transfer data set from memory."""
        if absolute_name(name) != absolute_name(self.own):
            for split in ("train", "test", "holdout"):
                self._splits.pop((absolute_name(name), split), None)

    def check(self) -> None:
        """Load every data set of the run once, and raise if nothing can be measured on one of them.

        Warn of classes that have images in only one split. A data set is checked only once.
        """
        for name in dict.fromkeys((self.own, *self.transfer)):
            if name in self.classes:
                continue
            train, queries = self.labelled(name)
            self.classes[name] = len(queries.classes)
            measured = "held-out" if self.holdout else "test"
            for one, other, what, consequence in (
                (queries, train, f"{measured} images but no training images", "so that these count as wrong"),
                (
                    train,
                    queries,
                    f"training images but no {measured} images",
                    "so that no figure covers these",
                ),
            ):
                _warn_of_classes(one, other, what, consequence)
            self.release(name)


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU or, for all other devices, of this machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        facts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(facts["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def pair(dataset: Dataset) -> tuple[Images, Tensor]:
    """Return images and labels, the arguments of the evaluators."""
    assert dataset.labels is not None
    return dataset.images, dataset.labels


def image_side(train: Dataset) -> int:
    """Return the side of square training images; raise if they are not square."""
    height, width = train.images.shape[2:]
    if height != width:
        raise InputError(
            f"dataset {train.name!r} has {height}×{width} images, but encoders take square ones: resize "
            "or crop them, or give them as folder:PATH, which does so."
        )
    return width


def _check_labels(dataset: Dataset) -> Dataset:
    if dataset.labels is None:
        raise InputError(
            f"dataset {dataset.name!r} has no labels ({dataset.split}): nothing can be measured on it. "
            "`intnacl pretrain` needs no labels; afterwards measure on a labelled data set with "
            "`intnacl probe RUN --dataset NAME`."
        )
    if len(dataset.classes) < 2:
        raise InputError(
            f"dataset {dataset.name!r} has {dataset.classes[0]!r} as its only class: every classifier would "
            "be right. Add other classes; `intnacl pretrain` and `intnacl embed` need no classes."
        )
    return dataset


def _warn_of_classes(one: Dataset, other: Dataset, what: str, consequence: str) -> None:
    """Warn of classes that have images in `one` and not in `other`."""
    alone = sorted(set(pair(one)[1].tolist()) - set(pair(other)[1].tolist()))
    if alone:
        names = ", ".join(one.classes[label] for label in alone[:5])
        more = ", …" * (len(alone) > 5)
        warnings.warn(
            f"dataset {one.name!r}: {len(alone)} of its classes have {what} ({names}{more}), {consequence}.",
            InputWarning,
            stacklevel=2,
        )
