"""Views made one image at a time, in the workers of torch's `DataLoader`, for custom training loops.

They are the views of `make_views`, with the epoch in place of the step and the image's index as its row: the
same for any number of workers, in any order. Mixed views need a batch: make them from its first views with
`mix`.

Shapes: V views, H×W pixels of the image, S = side of a view.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from intnacl.data.augment import augment
from intnacl.data.augmentations import AUGMENTATIONS, AugmentConfig
from intnacl.data.draws import check_seed
from intnacl.data.images import to_rgb
from intnacl.errors import InputError, check_choice, check_count

if TYPE_CHECKING:
    from PIL.Image import Image

    Picture: TypeAlias = Image | Tensor


class MultiViewTransform:
    """Maps an image to a list of views, each (3, S, S) in [0, 1]; normalisation is the network's.

        data = CIFAR10(root, transform=MultiViewTransform("simclr"))
        for (x0, x1), labels in DataLoader(data, batch_size=256, num_workers=8):

    Used by itself it draws from torch's generator, which `DataLoader` seeds in every worker, so the views
    depend on the number of workers. `MultiViewDataset` makes them a function of seed, epoch and index.
    """

    def __init__(
        self, augmentation: AugmentConfig | str = "paper", *, views: int = 2, size: int | None = None
    ) -> None:
        """Keep the settings.

        Args:
            augmentation: settings, or a name of AUGMENTATIONS: paper, simclr, crop_flip, pad_crop_flip, none.
            views: V, the number of views of an image.
            size: S; None: a view has the size of its image.
        """
        if isinstance(augmentation, str):
            check_choice("augmentation", augmentation, AUGMENTATIONS)
            augmentation = AUGMENTATIONS[augmentation]
        check_count("views", views)
        if size is not None:
            check_count("size", size)
        self.augmentation, self.views, self.size = augmentation, views, size

    def __call__(self, image: "Picture") -> list[Tensor]:
        """Return views of an image: PIL's, or a tensor (3, H, W) of uint8 or of floats in [0, 1]."""
        return self.draw(image, seed=int(torch.randint(2**62, ())), epoch=0, index=0)

    def draw(self, image: "Picture", *, seed: int, epoch: int, index: int) -> list[Tensor]:
        """Return the views of an image that belong to a seed, an epoch and the image's index."""
        pixels_3HW = image if isinstance(image, Tensor) else _pixels(image)
        if pixels_3HW.ndim != 3 or len(pixels_3HW) != 3:
            raise InputError(
                f"the image has shape {tuple(pixels_3HW.shape)}: expected (3, height, width); a grey one is "
                "image.expand(3, -1, -1)."
            )
        views_V3SS = augment(
            pixels_3HW.expand(self.views, -1, -1, -1),
            self.augmentation,
            seed=seed,
            step=epoch,
            view=torch.arange(self.views),
            rows=torch.full((self.views,), index),
            size=None if self.size is None else (self.size, self.size),
        )
        return list(views_V3SS.unbind())


class MultiViewDataset(Dataset[Any]):
    """A dataset whose images are replaced by views, a function of the seed, the epoch and the index.

        data = MultiViewDataset(CIFAR10(root), MultiViewTransform("simclr"), seed=0)
        loader = DataLoader(data, batch_size=256, shuffle=True, num_workers=8, persistent_workers=True)
        for epoch in range(100):
            data.set_epoch(epoch)
            for (x0, x1), labels in loader:

    An item may be an image, a tuple such as (image, label), or a dict, as those of Hugging Face `datasets`.
    """

    def __init__(
        self,
        dataset: Any,
        transform: MultiViewTransform | None = None,
        *,
        seed: int = 0,
        image: int | str = 0,
    ) -> None:
        """Wrap a dataset.

        Args:
            dataset: anything with `__len__` and `__getitem__`, whose images have not been augmented.
            transform: makes the views; by default two, augmented as in the paper.
            seed: an image's views are a function of the seed, the epoch and the image's index.
            image: the image's place in an item that is a tuple, or its key in a dict.
        """
        check_seed("seed", seed)
        self.dataset, self.transform = dataset, transform or MultiViewTransform()
        self.seed, self.image = seed, image
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """Draw the views of this epoch from now on, including in persistent workers."""
        check_count("epoch", epoch, low=0)
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        """Return an item with views, a list, in place of its image."""
        item, place = self.dataset[index], self.image
        if isinstance(item, Mapping):
            if place not in item:
                raise InputError(
                    f"image={place!r} is not a key of an item, which has {', '.join(map(str, item))}."
                )
            return {**item, place: self._views(item[place], index)}
        if isinstance(item, Sequence):
            if isinstance(place, str) or not -len(item) <= place < len(item):
                raise InputError(f"image={place!r} is not a place in an item, which has {len(item)} entries.")
            place %= len(item)
            return (*item[:place], self._views(item[place], index), *item[place + 1 :])
        return self._views(item, index)

    def _views(self, image: "Picture", index: int) -> list[Tensor]:
        return self.transform.draw(image, seed=self.seed, epoch=int(self._epoch), index=index)


def _pixels(image: "Image") -> Tensor:
    """Return the pixels of an image of any mode, (3, H, W) uint8."""
    if not hasattr(image, "convert"):
        raise InputError(
            f"the image is of type {type(image).__name__}: expected PIL's or a tensor (3, height, width)."
        )
    return torch.from_numpy(np.array(to_rgb(image, image.format))).permute(2, 0, 1)
