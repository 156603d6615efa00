"""One split of a data set, and the part of it that is held out.

Shapes: N images, 3 channels, H rows, W columns.
"""

import hashlib
import json
import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from intnacl.data.batches import permutation
from intnacl.data.images import ImageSet
from intnacl.data.streamed import StreamedImages, part_of
from intnacl.errors import InputError, printable

# In place of an epoch's number when shuffling: no epoch has these numbers.
HOLD_OUT, LABELLED = 0xFFFFFFFF, 0xFFFFFFFE


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Dataset(ImageSet):
    """One split of a data set; its images, labels, classes, broken images and names are as in `ImageSet`."""

    name: str
    split: str
    index: Tensor | None = None
    """Indices, (N,), of these images in the whole split; None: they are the whole split."""
    whole_checksum: str | None = None
    """The checksum of the whole split, if these images are a part of it."""

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
        """SHA-256, in hex, of shape, class names, pixels and labels, whatever files they came from.

        A part of a split has the checksum of the whole split. For streamed images the checksum covers their
        index instead of pixels: names, lengths, labels and the sizes of shards.
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
        """Split training images into those to train on and `count` to measure on, the split "holdout".

        Every class gives the same share of its images, to within one; without labels any image may be chosen.
        The choice depends only on the number of images and their labels, never on the seed of a run.
        """
        if not 1 <= count < len(self):
            raise InputError(
                f"holdout={count} of the {len(self):,} training images of {self.name!r}: take at least 1 and "
                "leave some to train on."
            )
        held = self._balanced_order(0, HOLD_OUT)[:count].sort().values
        kept = torch.ones(len(self), dtype=torch.bool).index_fill(0, held, False).nonzero()[:, 0]
        return self._part(kept, self.split), self._part(held, "holdout")

    def labelled_share(self, share: float, seed: int) -> "Dataset":
        """Return a share of labelled images, the same of every class to within one image, chosen by seed."""
        assert self.labels is not None
        order_N = self._balanced_order(seed, LABELLED)
        chosen = order_N[: max(1, round(share * len(self)))]
        present = set(self.labels.tolist())
        if empty := sorted(present - set(self.labels[chosen].tolist())):
            some = ", ".join(self.classes[label] for label in empty[:5]) + ", …" * (len(empty) > 5)
            last = max(int((self.labels[order_N] == label).nonzero()[0, 0]) for label in empty)
            least = math.ceil(1000 * (last + 1) / len(self)) / 10  # percent, with which all have some
            raise InputError(
                f"{100 * share:g} % of the {len(self):,} labels of {self.name!r} are {len(chosen)} images, "
                f"and {len(empty)} of {len(present)} classes have none of them ({some}): take "
                f"{least:g} % or more."
            )
        return self._part(chosen.sort().values, self.split)

    def _balanced_order(self, seed: int, stream: int) -> Tensor:
        """Return a random order of the images, (N,); in its first n, each class has its share, for any n."""
        n = len(self)
        labels_N = torch.zeros(n, dtype=torch.int64) if self.labels is None else self.labels
        shuffled_N = permutation(seed, stream, n)
        by_class_N = shuffled_N[labels_N[shuffled_N].argsort(stable=True)]  # in random order in each class
        size_C = torch.bincount(labels_N)
        rank_N = torch.arange(n) - (size_C.cumsum(0) - size_C)[labels_N[by_class_N]]
        quantile_N = (rank_N + 0.5) / size_C[labels_N[by_class_N]]
        return by_class_N[quantile_N.argsort(stable=True)]

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
        """Return the indices of `count` evenly spaced images (of all, if there are fewer)."""
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
