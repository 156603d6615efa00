"""What is measured: the encoder of a run folder, and labelled images that fit it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from intnacl.console import watched
from intnacl.data import Dataset, load
from intnacl.data.datasets import absolute_name, absolute_root, check_stored_name
from intnacl.errors import InputError
from intnacl.evaluation.features import check_pair, extract
from intnacl.evaluation.precision import exact_float32
from intnacl.models.encoders import Encoder
from intnacl.models.weights import from_pretrained, read_header
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import RunFolder
from intnacl.runs.pretrain import image_side

FEATURE_BATCH = 512  # images of a forward pass
RESIZED = ("folder", "parquet")  # data sets that take the size of their images from us


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A run folder with its encoder on a device."""

    folder: RunFolder
    config: RunConfig
    encoder: Encoder
    image_size: int
    checksum: str
    """SHA-256 of `encoder.safetensors`."""
    trained_on: str | None
    """Checksum of the images that the encoder was trained on; None: it is an older one."""
    device: torch.device
    # Not of another encoder: `replace` begins with none.
    _features: dict[tuple[str, str], tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def data_sets(self) -> tuple[str, ...]:
        """The run's own data set, then those of transfer."""
        return tuple(dict.fromkeys((self.config.dataset, *self.config.evaluation.transfer)))

    def named(self, names: Sequence[str]) -> tuple[str, ...]:
        """The data sets that a user names, paths made absolute; by default the run's own."""
        return tuple(name if name in self.data_sets else absolute_name(name) for name in names) or (
            self.config.dataset,
        )

    def load(self, name: str) -> tuple[Dataset, Dataset]:
        """Training and test images of a data set."""
        return load_labelled(self.config, name, self.image_size)

    def load_split(self, name: str, split: str) -> Dataset:
        """Images of one split, labelled or not."""
        return _load_fitting(self.config, name, split, self.image_size)

    def features(self, train: Dataset, test: Dataset) -> tuple[Tensor, Tensor]:
        """Features of both splits in float32, (N, F) and (T, F); those of the last data set are kept."""
        key = (train.checksum, test.checksum)
        if key not in self._features:
            self._features.clear()
            check_pair(pair(train), pair(test))
            self._features[key] = self.embed(train), self.embed(test)
        return self._features[key]

    def embed(self, images: Dataset) -> Tensor:
        """Features of a split in float32, (N, F)."""
        with exact_float32(), watched(self.encoder, f"features of {images.name}", len(images)):
            return extract(self.encoder, images.images, batch_size=FEATURE_BATCH, device=self.device)


def open_subject(run: str | Path | RunFolder, device: torch.device, root: Path | None = None) -> Subject:
    """The finished run of a folder; `root` is where data sets are now, if not where it was trained."""
    folder = run if isinstance(run, RunFolder) else RunFolder(run)
    config, path = folder.read_config(), folder.encoder
    if root is not None:
        config = replace(config, root=absolute_root(str(root)))
    folder.require_encoder()
    header = read_header(path)
    return Subject(
        folder=folder,
        config=config,
        encoder=from_pretrained(path).to(device),
        image_size=int(header["image_size"]),
        checksum=hashlib.sha256(path.read_bytes()).hexdigest(),
        trained_on=header.get("data"),
        device=device,
    )


def load_labelled(config: RunConfig, name: str, image_size: int | None) -> tuple[Dataset, Dataset]:
    """Both splits of a data set, with labels, one list of classes, and images of one size, the encoder's."""
    train = _labelled(_load_fitting(config, name, "train", image_size))
    test = _labelled(_load_fitting(config, name, "test", image_size or image_side(train)))
    if train.classes != test.classes:
        missing = sorted(set(train.classes) ^ set(test.classes))
        raise InputError(
            f"dataset {name!r}: its training and test images have different classes "
            f"({', '.join(missing[:5]) or 'in another order'}): give both the same class folders or names."
        )
    return train, test


def pair(dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Images and labels, as the evaluators take them."""
    assert dataset.labels is not None
    return dataset.images, dataset.labels


def _load_fitting(config: RunConfig, name: str, split: str, image_size: int | None) -> Dataset:
    """A split with images of the encoder's size; those of folders and parquet files are resized to it."""
    check_stored_name(name)
    own = name == config.dataset
    size = config.size if own else image_size if name.partition(":")[0] in RESIZED else None
    dataset = load(name, split, config.root, size=size)
    height, width = dataset.images.shape[2:]
    if image_size is not None and (height, width) != (image_size, image_size):
        raise InputError(
            f"dataset {dataset.name!r} has {height}×{width} {split} images, but the encoder is trained on "
            f"{image_size}×{image_size}: choose a data set of that size, or folder:PATH, which is resized."
        )
    return dataset


def _labelled(dataset: Dataset) -> Dataset:
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
