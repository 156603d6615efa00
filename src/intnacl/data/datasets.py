"""Loading a data set by name: uint8 images, labels and class names.

    from intnacl.data import load
    train = load("cifar100", split="train", root="~/data")

Shapes: N images, 3 channels, H rows, W columns.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path

from intnacl.data.cache import default_root
from intnacl.data.cifar import load_cifar10, load_cifar100
from intnacl.data.dataset import Dataset
from intnacl.data.digits import load_digits
from intnacl.data.folder import load_folder
from intnacl.data.images import ImageSet, LoadRequest
from intnacl.data.npz import load_npz
from intnacl.data.parquet import load_parquet
from intnacl.data.tinyimagenet import load_tinyimagenet
from intnacl.data.webdataset import load_webdataset
from intnacl.errors import InputError, InputWarning, check_choice, is_number, printable
from intnacl.files import as_path

SPLITS = ("train", "test")
SHOWN = 5  # broken images that a warning names


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A kind of data set: its loader, and what `intnacl datasets` lists about it."""

    load: Callable[[LoadRequest], ImageSet]
    counts: tuple[int, int] | None = None
    """Images for training and for testing; None: any."""
    side: int | None = None
    """Side length of every image in pixels; None: any."""
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
    """True for a user's own data set, KIND:PATH, whose files may change, unlike those of a named set."""
    return ":" in name


def absolute_name(name: str) -> str:
    """Return the name with its path made absolute, so that it means the same in every folder; ~ is kept."""
    kind, _, path = name.partition(":")
    return f"{kind}:{Path(path).absolute()}" if _is_relative(path) else name


def absolute_root(root: str | None) -> str | None:
    """Return the folder of data sets as an absolute path; ~ and None are kept."""
    return str(Path(root).absolute()) if root and _is_relative(root) else root


def local_name(name: str) -> str:
    """Return the name as it is usually typed: a path below the current folder is relative to it."""
    kind, colon, path = name.partition(":")
    inside = colon and Path(path).is_relative_to(Path.cwd())
    return f"{kind}:{Path(path).relative_to(Path.cwd())}" if inside else name


def check_stored_name(name: str) -> None:
    """Raise if a run stores a relative path, as earlier versions did, that does not exist from here."""
    path = name.partition(":")[2]
    if _is_relative(path) and not Path(path).exists():
        raise InputError(
            f"dataset {name!r} is a path relative to the folder in which the run was begun, and "
            f"{Path(path).absolute()} does not exist: run this command in that folder."
        )


def _is_relative(path: str) -> bool:
    return bool(path) and not path.startswith("~") and not Path(path).is_absolute()


def check_name(name: str) -> None:
    """Raise unless `name` is a key of `DATASETS`, followed by `:PATH` for the user's own images."""
    if not isinstance(name, str):
        raise InputError(f"dataset={name!r} is not a string: give a name such as 'digits' or 'folder:PATH'.")
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

    `name` is a key of `DATASETS`, followed by `:PATH` for your own images. `root` is where named sets are
    looked for and caches are kept: by default $INTNACL_DATA, else ~/.cache/intnacl. `size` is the side to
    which `folder:`, `parquet:` and `webdataset:` resize (32). Images that cannot be decoded are listed in
    `.skipped`, with a warning when they are first decoded; `strict` makes them an error. `.names` are the
    paths of a folder's images, in the same order. `download=False` never uses the network. If images of a
    kind that is resized take more than `room` bytes, `.images` stay on the disk and are decoded when they are
    indexed; `room=0` always streams.
    """
    check_name(name)
    check_choice("split", split, SPLITS)
    kind, _, path = name.partition(":")
    if size is not None and (not isinstance(size, Integral) or size < 1):
        raise InputError(f"size={size!r} is not the side of an image: give 1 or more, such as 32.")
    if not (is_number(room) and room >= 0):
        raise InputError(f"room={room!r} is not a number of bytes: give 0 to stream, or leave it out.")
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
    loaded = replace(
        loaded, classes=tuple(map(printable, loaded.classes))
    )  # they are drawn in figures and written to files
    return Dataset(name=name, split=split, **vars(loaded))
