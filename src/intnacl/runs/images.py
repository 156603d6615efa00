"""The images of a run: each split is read, checked and hashed once, and handed on to whatever needs it."""

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
RESIZED = ("folder", "parquet", "webdataset")  # data sets that take the size of their images from us


class Checksums(TypedDict):
    """Of images and labels of whole splits, by which they are told from others."""

    train: str
    test: NotRequired[str]
    """Missing where held-out training images are measured on."""


class LabelledPair(NamedTuple):
    """Training images and those that are measured on, with one list of classes and images of one size."""

    train: Dataset
    queries: Dataset
    """The test images, or training images that were held out."""

    @property
    def checksums(self) -> Checksums:
        """The checksums of the splits behind them."""
        checksums: Checksums = {"train": self.train.checksum}
        if self.split == "test":
            checksums["test"] = self.queries.checksum
        return checksums

    @property
    def split(self) -> MeasuredSplit:
        """The split of the images that are measured on."""
        return "holdout" if self.queries.split == "holdout" else "test"


class RunImages:
    """The images that a run is trained and measured on, loaded when they are first asked for.

    Where the run holds images out, each data set's split "train" is what is left of its training images, and
    "holdout" the others, which are measured on in place of "test".

    The run's own data set stays in memory, and at most one data set of transfer beside it. `side` is that of
    the images that the run's encoder takes; None: that of the run's own training images.
    """

    def __init__(self, config: RunConfig, *, side: int | None = None) -> None:
        self.own, self.transfer = config.dataset, config.evaluation.transfer
        self.side, self._root, self._size = side, config.root, config.size
        self.stream = config.stream
        """always or never once it is decided, till then auto: every set is then resident."""
        self.holdout = config.holdout
        self._splits: dict[tuple[str, str], Dataset] = {}
        self._checksums: dict[str, Checksums] = {}
        self.classes: dict[str, int] = {}
        """Data set -> number of its classes, for those that were checked."""

    @property
    def measured_split(self) -> MeasuredSplit:
        """The split that everything is measured on."""
        return "holdout" if self.holdout else "test"

    def decide(self, begun: RunConfig | None, here: Ranks) -> str:
        """Decide, where it is left to the device, whether images are streamed, and say why in one line.

        A run that was begun goes on as it was. All ranks decide alike. The line is empty if there was nothing
        to decide, or where a set that has always one size stays resident.
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
            f"that are free on {here.device}"
        )

    def training(self) -> Dataset:
        """Return the images that the run is trained on, labelled or not, without those held out."""
        return self.split(self.own, "train")

    def split(self, name: str, split: str) -> Dataset:
        """Return the images of a split, labelled or not, of the encoder's size if that is known."""
        if split == "holdout" and not self.holdout:
            raise InputError("split='holdout': this run holds no images out. Take train or test.")
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
                    f"dataset {name!r} has {height}×{width} {split} images, but the encoder is trained on "
                    f"{self.side}×{self.side}: choose a data set of that size, or folder:PATH, which is "
                    "resized."
                )
            self._keep(key[0], on_disk, dataset)
        return self._splits[key]

    def _load(self, name: str, split: str, size: int | None, *, room: float) -> Dataset:
        return load(name, split, self._root, size=size, room=room)

    def _keep(self, name: str, split: str, dataset: Dataset) -> None:
        """Keep a loaded split, divided where images are held out."""
        divided = dataset.hold_out(self.holdout) if self.holdout and split == "train" else (dataset,)
        for part in divided:
            self._splits[name, part.split] = part

    def labelled(self, name: str) -> LabelledPair:
        """Return the images to fit on and to measure on; raise if nothing can be measured on them."""
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
        """Return the checksums of a data set's `labelled` images; they are kept when it is released."""
        key = absolute_name(name)
        if key not in self._checksums:
            self._checksums[key] = self.labelled(name).checksums
        return self._checksums[key]

    def is_loaded(self, name: str) -> bool:
        """True if the `labelled` images of a data set are in memory."""
        return {
            (absolute_name(name), split) for split in ("train", self.measured_split)
        } <= self._splits.keys()

    def release(self, name: str) -> None:
        """Let go of a data set of transfer."""
        if absolute_name(name) != absolute_name(self.own):
            for split in ("train", "test", "holdout"):
                self._splits.pop((absolute_name(name), split), None)

    def check(self) -> None:
        """Load every data set of the run once and raise if nothing can be measured on one of them.

        Classes that have images in one split alone are warned of. What was checked is not checked again.
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
                    "so that no figure is about these",
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
    """Return images and labels, as the evaluators take them."""
    assert dataset.labels is not None
    return dataset.images, dataset.labels


def image_side(train: Dataset) -> int:
    """Return the side of the images that an encoder is to be trained on."""
    height, width = train.images.shape[2:]
    if height != width:
        raise InputError(
            f"dataset {train.name!r} has {height}×{width} images, but encoders are for square ones: resize "
            "or crop them, or give them as folder:PATH, which does so."
        )
    return width


def _check_labels(dataset: Dataset) -> Dataset:
    if dataset.labels is None:
        raise InputError(
            f"dataset {dataset.name!r} has no labels ({dataset.split}): nothing can be measured on it. "
            "Pretraining needs none (`intnacl pretrain`); then measure on a labelled set: "
            "`intnacl probe RUN --dataset NAME`."
        )
    if len(dataset.classes) < 2:
        raise InputError(
            f"dataset {dataset.name!r} has {dataset.classes[0]!r} as its only class: every classifier would "
            "be right. Add other classes; `intnacl pretrain` and `intnacl embed` need none."
        )
    return dataset


def _warn_of_classes(one: Dataset, other: Dataset, what: str, consequence: str) -> None:
    """Warn of classes that have images in the one split alone."""
    alone = sorted(set(pair(one)[1].tolist()) - set(pair(other)[1].tolist()))
    if alone:
        names = ", ".join(one.classes[label] for label in alone[:5])
        more = ", …" * (len(alone) > 5)
        warnings.warn(
            f"dataset {one.name!r}: {len(alone)} of its classes have {what} ({names}{more}), {consequence}.",
            InputWarning,
            stacklevel=2,
        )
