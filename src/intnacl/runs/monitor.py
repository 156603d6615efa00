"""The kNN accuracy of an encoder while it is trained."""

import warnings

import torch
from torch import Tensor, nn

from intnacl.data import load
from intnacl.data.datasets import Dataset
from intnacl.errors import InputError, InputWarning
from intnacl.evaluation import knn
from intnacl.evaluation.features import check_pair
from intnacl.runs.config import RunConfig
from intnacl.training.ranks import Ranks


class KnnMonitor:
    """The kNN accuracy of the encoder in training, on at most 10,000 training and 2,000 test images."""

    def __init__(self, train: Dataset, test: Dataset, device: torch.device) -> None:
        self.train, self.test = _sample(train, 10_000), _sample(test, 2_000)
        check_pair(self.train, self.test)
        self.config = knn.suited(len(self.train[0]), len(train.classes))
        self.device = device

    def __call__(self, encoder: nn.Module) -> dict[str, float]:
        """{"knn": percent}."""
        figures = knn.evaluate(encoder, self.train, self.test, self.config, device=self.device)
        return {"knn": figures["accuracy"]}


def _sample(dataset: Dataset, count: int) -> tuple[Tensor, Tensor]:
    """Images from all over the set, since some sets are sorted by class."""
    assert dataset.labels is not None
    chosen = dataset.spread(count)
    return dataset.images[chosen], dataset.labels[chosen]


def build_monitor(config: RunConfig, train: Dataset, here: Ranks) -> KnnMonitor | None:
    """The monitor of a labelled set with a test split, on the rank that looks at it; else none."""
    if train.labels is None or not config.train.monitor_epochs or not here.main:
        return None
    try:
        test = load(config.dataset, "test", config.root, size=config.size)
        return KnnMonitor(train, test, here.device) if test.labels is not None else None
    except InputError as error:
        warnings.warn(f"the kNN accuracy is not watched: {error}", InputWarning, stacklevel=2)
        return None
