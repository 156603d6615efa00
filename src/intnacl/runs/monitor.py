"""The kNN accuracy of an encoder while it is trained."""

import warnings

from intnacl.data import load
from intnacl.data.datasets import Dataset
from intnacl.errors import InputError, InputWarning
from intnacl.evaluation.knn import KnnMonitor
from intnacl.runs.config import RunConfig
from intnacl.training.ranks import Ranks


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
