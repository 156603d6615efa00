"""Name -> uint8 images, labels and class names.

    from intnacl.data import load
    train = load("cifar100", split="train", root="~/data")

Shapes: N images, 3 channels, H rows, W columns.
"""

import hashlib
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path

import torch
from torch import Tensor

from intnacl.data.batches import permutation
from intnacl.data.cache import default_root
from intnacl.data.cifar import load_cifar10, load_cifar100
from intnacl.data.digits import load_digits
from intnacl.data.folder import load_folder
from intnacl.data.images import ImageSet, LoadRequest
from intnacl.data.npz import load_npz
from intnacl.data.parquet import load_parquet
from intnacl.data.streamed import StreamedImages, part_of
from intnacl.data.tinyimagenet import load_tinyimagenet
from intnacl.data.webdataset import load_webdataset
from intnacl.errors import InputError, InputWarning, check_choice, is_number, printable
from intnacl.files import as_path

SPLITS = ("train", "test")
SHOWN = 5  # broken images that a warning names
HOLD_OUT = 0xFFFFFFFF  # in the place of the epoch: no epoch shuffles images as the hold-out does


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Dataset(ImageSet):
    """One split of a data set; its images, labels, classes, broken images and names are as in `ImageSet`."""

    name: str
    split: str
    index: Tensor | None = None
    """Places of the images in the split that they are a part of, (N,); None: they are all of it."""
    whole_checksum: str | None = None
    """The checksum of that split."""

    def __post_init__(self) -> None:
        count, channels, *_ = self.images.shape
        assert len(self.names) in (0, count), (len(self.names), count)
        assert self.images.dtype == torch.uint8, self.images.dtype
        assert self.images.ndim == 4, self.images.shape
        assert channels == 3, self.images.shape
        if self.labels is not None:
            assert self.labels.dtype == torch.int64, self.labels.dtype
            assert self.labels.shape == (count,), self.labels.shape
            assert 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes)

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of shape, class names, pixels and labels in hex, wherever they were read from.

        A part of a split has the checksum of the whole. That of streamed images covers their index in place
        of pixels: names, lengths, labels and the sizes of shards.
        """
        if self.whole_checksum is not None:
            return self.whole_checksum
        header = {
            "shape": list(self.images.shape),
            "classes": self.classes,
            "labelled": self.labels is not None,
        }
        digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
        if isinstance(self.images, StreamedImages):
            return hashlib.sha256(digest.digest() + self.images.index.checksum.encode()).hexdigest()
        digest.update(self.images.contiguous().numpy().data)
        if self.labels is not None:
            digest.update(self.labels.contiguous().numpy().data)
        return digest.hexdigest()

    def hold_out(self, count: int) -> "tuple[Dataset, Dataset]":
        """Divide training images into those to train on and `count` to measure on, as split "holdout".

        Every class gives the same share of its images, to within one; without labels any image may be chosen.
        The choice depends on the number of images and their labels alone, never on the seed of a run.
        """
        if not 1 <= count < len(self):
            raise InputError(
                f"holdout={count} of the {len(self):,} training images of {self.name!r}: take at least 1 and "
                "leave some to train on."
            )
        n = len(self)
        labels_N = torch.zeros(n, dtype=torch.int64) if self.labels is None else self.labels
        shuffled_N = permutation(0, HOLD_OUT, n)
        by_class_N = shuffled_N[labels_N[shuffled_N].argsort(stable=True)]  # in random order in each class
        size_C = torch.bincount(labels_N)
        rank_N = torch.arange(n) - (size_C.cumsum(0) - size_C)[labels_N[by_class_N]]
        quantile_N = (rank_N + 0.5) / size_C[labels_N[by_class_N]]
        held = by_class_N[quantile_N.argsort(stable=True)[:count]].sort().values
        kept = torch.ones(n, dtype=torch.bool).index_fill(0, held, False).nonzero()[:, 0]
        return self._part(kept, self.split), self._part(held, "holdout")

    def _part(self, index: Tensor, split: str) -> "Dataset":
        images, names = part_of(self.images, index), self.names
        if isinstance(images, StreamedImages):
            names = images.names
        elif names:
            names = tuple(names[i] for i in index.tolist())
        return replace(
            self,
            split=split,
            images=images,
            labels=None if self.labels is None else self.labels[index],
            names=names,
            index=index,
            whole_checksum=self.checksum,
        )

    def spread(self, count: int) -> Tensor:
        """Return the indices of `count` images (of all, if there are fewer) at even distances."""
        if count < 1:
            raise InputError(f"rows={count} draws nothing: give 1 or more.")
        count = min(count, len(self))
        return torch.arange(count) * len(self) // count

    def captions(self, indices: Tensor) -> list[str]:
        """Return the class names of these images or, without labels, their own names or their indices."""
        if self.labels is None:
            return [printable(self.names[i]) if self.names else f"no. {i}" for i in indices.tolist()]
        return [self.classes[label] for label in self.labels[indices].tolist()]

    def __repr__(self) -> str:
        return f"<{self.facts}>"

    @property
    def facts(self) -> str:
        """Name, split, number and size of the images, and classes, in one line."""
        count, _, height, width = self.images.shape
        classes = f"{len(self.classes)} classes" if self.labels is not None else "unlabelled"
        broken = f", {len(self.skipped)} broken skipped" if self.skipped else ""
        streamed = ", streamed" if isinstance(self.images, StreamedImages) else ""
        return f"{self.name}, {self.split}: {count:,} images, {height}×{width}, {classes}{broken}{streamed}"

    def summary(self) -> str:
        """Return `facts` and the checksum, in one line."""
        return f"{self.facts}; sha256 {self.checksum}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A kind of data set: its loader, and what `intnacl datasets` lists of it."""

    load: Callable[[LoadRequest], ImageSet]
    counts: tuple[int, int] | None = None
    """Images for training and for testing; None: any."""
    side: int | None = None
    """Of every image; None: any."""
    resized: bool = False
    classes: str = "any"
    files: str
    takes_path: bool = False

    @property
    def images(self) -> str:
        """The numbers of images as text, such as "50,000 + 10,000"."""
        return " + ".join(f"{count:,}" for count in self.counts) if self.counts else "any"

    @property
    def size(self) -> str:
        """The size of the images as text, such as "32×32"."""
        return f"{self.side}×{self.side}" if self.side else "resized" if self.resized else "any"


DATASETS: dict[str, Entry] = {
    "digits": Entry(load=load_digits, counts=(1442, 355), side=8, classes="10", files="none: embedded"),
    "cifar10": Entry(
        load=load_cifar10,
        counts=(50_000, 10_000),
        side=32,
        classes="10",
        files="cifar-10-batches-py/ or cifar-10-python.tar.gz, downloaded if missing",
    ),
    "cifar100": Entry(
        load=load_cifar100,
        counts=(50_000, 10_000),
        side=32,
        classes="100",
        files="cifar-100-python/ or cifar-100-python.tar.gz, downloaded if missing",
    ),
    "tinyimagenet": Entry(
        load=load_tinyimagenet,
        counts=(100_000, 10_000),
        side=64,
        classes="200",
        files="tiny-imagenet-200/ or tiny-imagenet-200.zip, downloaded if missing",
    ),
    "folder": Entry(
        load=load_folder,
        resized=True,
        files="class folders, or flat and unlabelled; in train/ and test/ if split",
        takes_path=True,
    ),
    "parquet": Entry(
        load=load_parquet,
        resized=True,
        files="Hugging Face's train*.parquet and test*.parquet, or one file",
        takes_path=True,
    ),
    "webdataset": Entry(
        load=load_webdataset,
        resized=True,
        files="shards train*.tar and test*.tar, or a pattern such as train-{000..099}.tar",
        takes_path=True,
    ),
    "npz": Entry(
        load=load_npz,
        files="arrays images and labels; train_images, … and test_images, … if split",
        takes_path=True,
    ),
}


def is_at_path(name: str) -> bool:
    """True if a data set is one's own, KIND:PATH: its files may change, those of a named set do not."""
    return ":" in name


def absolute_name(name: str) -> str:
    """Return the name with its path made absolute, so that it means the same in every folder; ~ stays."""
    kind, _, path = name.partition(":")
    return f"{kind}:{Path(path).absolute()}" if _is_relative(path) else name


def absolute_root(root: str | None) -> str | None:
    """Return the folder of data sets as an absolute path; ~ and None stay."""
    return str(Path(root).absolute()) if root and _is_relative(root) else root


def local_name(name: str) -> str:
    """Return the name with a path below the current folder relative to it, as it is usually typed."""
    kind, colon, path = name.partition(":")
    inside = colon and Path(path).is_relative_to(Path.cwd())
    return f"{kind}:{Path(path).relative_to(Path.cwd())}" if inside else name


def check_stored_name(name: str) -> None:
    """Raise if a run stores a relative path, as earlier versions did, that leads nowhere from here."""
    path = name.partition(":")[2]
    if _is_relative(path) and not Path(path).exists():
        raise InputError(
            f"dataset {name!r} is a path relative to the folder in which the run was begun, and "
            f"{Path(path).absolute()} does not exist: run this command in that folder."
        )


def _is_relative(path: str) -> bool:
    return bool(path) and not path.startswith("~") and not Path(path).is_absolute()


def check_name(name: str) -> None:
    """Raise unless `name` is a key of `DATASETS`, followed by `:PATH` for one's own images."""
    if not isinstance(name, str):
        raise InputError(f"dataset={name!r} is no text: give a name such as 'digits' or 'folder:PATH'.")
    kind, _, path = name.partition(":")
    if name and kind not in DATASETS and _at_home(name).exists():
        raise InputError(f"dataset={name!r} is a path: write 'folder:{name}', or parquet: or npz: before it.")
    check_choice("dataset", kind, DATASETS)
    if DATASETS[kind].takes_path != bool(path):
        raise InputError(
            f"dataset={name!r}: write {kind + ':PATH' if DATASETS[kind].takes_path else kind!r}."
        )


def _at_home(path: str | Path) -> Path:
    """Return the path with ~ replaced by the user's home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"{path}: this system has no such user.") from None


def load(
    name: str = "digits",
    split: str = "train",
    root: str | Path | None = None,
    *,
    size: int | None = None,
    strict: bool = False,
    download: bool = True,
    room: float = math.inf,
) -> Dataset:
    """Load one split ("train" or "test") of a data set, as uint8 images (N,3,H,W).

    `name` is a key of `DATASETS`, followed by `:PATH` for one's own images. `root` is where named sets are
    looked for and caches are kept: by default $INTNACL_DATA, else ~/.cache/intnacl. `size` is the side to
    which `folder:`, `parquet:` and `webdataset:` resize (32). Images that cannot be decoded are listed in
    `.skipped`, with a warning when they are first decoded; `strict` makes them an error. `.names` are the
    paths of a folder's images, in the same order. `download=False` never touches the network. Where those
    that are resized take more than `room` bytes, `.images` stay on the disk and are decoded when they are
    indexed; `room=0` always streams.
    """
    check_name(name)
    check_choice("split", split, SPLITS)
    kind, _, path = name.partition(":")
    if size is not None and (not isinstance(size, Integral) or size < 1):
        raise InputError(f"size={size!r} is no image's side: give 1 or more, such as 32.")
    if not (is_number(room) and room >= 0):
        raise InputError(f"room={room!r} is no number of bytes: give 0 to stream, or leave it out.")
    request = LoadRequest(
        split=split,
        root=_at_home(as_path("root", root)) if root is not None else default_root(),
        path=_at_home(path) if path else None,
        size=None if size is None else int(size),
        download=download,
        room=room,
    )
    try:
        loaded = DATASETS[kind].load(request)
    except MemoryError as error:
        raise InputError(f"{name}: there is not enough memory ({error}).") from error
    except OSError as error:
        place = f" {error.filename}" if error.filename else ""
        raise InputError(f"{name}: cannot read{place}: {error.strerror or error}.") from error
    height, width = loaded.images.shape[2:]
    if size is not None and (height, width) != (size, size):
        raise InputError(
            f"size={size}: {name} has {height}×{width} images and is not resized: leave size out."
        )
    if skipped := len(loaded.skipped):
        broken = [f"{image} ({reason})" for image, reason in loaded.skipped.items()]
        more = f" and {skipped - SHOWN} more" if skipped > SHOWN else ""
        counts = f"{skipped} of {skipped + len(loaded.images)} images are broken"
        message = f"{name}, {split}: {counts}: {', '.join(broken[:SHOWN])}{more}"
        if strict:
            raise InputError(f"{message}. Repair or remove them, or load without strict, which skips them.")
        if loaded.decoded:
            warnings.warn(f"{message}; they are skipped", InputWarning, stacklevel=2)
    loaded = replace(loaded, classes=tuple(map(printable, loaded.classes)))  # to be drawn and written
    return Dataset(name=name, split=split, **vars(loaded))
