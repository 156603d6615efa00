"""The kNN monitor of a run: what it measures, and when there is none."""

from pathlib import Path

import numpy as np
import pytest
import torch

from intnacl.data import load
from intnacl.errors import InputWarning
from intnacl.runs.config import RunConfig
from intnacl.runs.pretrain import build_monitor
from intnacl.runs.resolve import resolve
from intnacl.training.ranks import Ranks

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)


def watched(epochs: int = 1, **settings: object) -> RunConfig:
    return resolve({"train.monitor_epochs": epochs, **settings})


def sorted_by_class(folder: Path, count: int) -> str:
    """A data set whose first images are all of one class, and which has no test split."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (count, 8, 8, 3), dtype=np.uint8)
    np.savez(folder / "own.npz", images=images, labels=np.sort(rng.integers(0, 3, count)))
    return f"npz:{folder / 'own.npz'}"


def test_it_measures_knn_accuracy() -> None:
    made = build_monitor(watched(), load("digits"), ALONE)
    assert made is not None
    assert made.config.k == 144
    assert made(torch.nn.Flatten())["knn"] > 80


def test_there_is_none_on_other_ranks_where_it_is_off_and_without_labels(tmp_path: Path) -> None:
    assert build_monitor(watched(), load("digits"), Ranks(1, 2, CPU)) is None
    assert build_monitor(watched(epochs=0), load("digits"), ALONE) is None
    np.savez(tmp_path / "plain.npz", images=np.zeros((4, 8, 8, 3), dtype=np.uint8))
    assert build_monitor(watched(), load(f"npz:{tmp_path / 'plain.npz'}"), ALONE) is None


def test_there_is_none_without_a_test_split(tmp_path: Path) -> None:
    name = sorted_by_class(tmp_path, 40)
    with pytest.warns(InputWarning, match="the kNN accuracy is not watched: .*test"):
        assert build_monitor(watched(dataset=name), load(name), ALONE) is None


def test_there_is_none_where_test_images_have_another_size(tmp_path: Path) -> None:
    arrays = {"train_labels": np.arange(4) % 2, "test_labels": np.arange(4) % 2}
    for split, side in (("train", 8), ("test", 9)):
        arrays[f"{split}_images"] = np.zeros((4, side, side, 3), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", **arrays)
    name = f"npz:{tmp_path / 'own.npz'}"
    with pytest.warns(InputWarning, match="the kNN accuracy is not watched: .*the same size"):
        assert build_monitor(watched(dataset=name), load(name), ALONE) is None
