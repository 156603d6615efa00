"""The images of a run: read once, checked against the encoder, and refused if nothing can be measured."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from intnacl.data import Dataset, load
from intnacl.errors import InputError, InputWarning
from intnacl.runs.images import RunImages
from intnacl.runs.pretrain import build_monitor
from intnacl.runs.resolve import resolve
from intnacl.training.ranks import Ranks
from mistakes import must_refuse
from tiny_run import HERE, write_images


def images(name: str = "digits", *, side: int | None = 8, **settings: object) -> RunImages:
    return RunImages(resolve({"dataset": name, **settings}), side=side)


def write_arrays(
    path: Path, *, train: tuple[int, int] = (8, 8), test: tuple[int, int] = (8, 8), test_classes: int = 4
) -> str:
    """Write an `npz:` data set of black images with 4 training classes, and return its name."""
    np.savez(
        path, train_images=np.zeros((16, *train, 3), np.uint8), train_labels=np.arange(16) % 4,
        test_images=np.zeros((16, *test, 3), np.uint8), test_labels=np.arange(16) % test_classes,
    )  # fmt: skip
    return f"npz:{path}"


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The splits in the order in which they were read."""
    read: list[str] = []

    def _counted(name: str, split: str, *rest: Any, **options: Any) -> Dataset:
        read.append(f"{name.rpartition('/')[2]} {split}")
        return load(name, split, *rest, **options)

    monkeypatch.setattr("intnacl.runs.images.load", _counted)
    return read


def test_one_transfer_set_at_a_time_stays_loaded_with_the_own_data_set_of_the_run(tmp_path, loaded):
    first, second = write_arrays(tmp_path / "a.npz"), write_arrays(tmp_path / "b.npz")
    found = images(**{"evaluation.transfer": (first, second)})
    found.check()
    assert [found.is_loaded(name) for name in ("digits", first, second)] == [True, False, False]
    assert found.classes == {"digits": 10, first: 4, second: 4}
    found.labelled(first)
    checksums = found.checksums(first)
    found.labelled(second)
    assert [found.is_loaded(name) for name in ("digits", first, second)] == [True, False, True]
    assert found.checksums(first) == checksums  # without reading it again
    assert loaded[6:] == ["a.npz train", "a.npz test", "b.npz train", "b.npz test"]
    found.check()
    assert len(loaded) == 10


def test_folders_are_resized_to_the_encoder_and_their_broken_images_named_once(tmp_path):
    name = write_images(tmp_path / "images", side=20)
    (tmp_path / "images/test/cat/0.png").write_bytes(b"no image")
    found = images(root=str(tmp_path), **{"evaluation.transfer": (name,)})
    with pytest.warns(InputWarning, match="1 of 12 images are broken"):
        found.check()
    train, test = found.labelled(name)  # it was released; warnings are errors here
    assert (train.images.shape, len(test)) == ((12, 3, 8, 8), 11)
    assert test.classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("train", "test", "side", "told"),
    [
        ((16, 16), (8, 8), 8, "has 16×16 train images, but the encoder was trained on 8×8: choose a data"),
        ((4, 4), (8, 8), 8, "has 4×4 train images, but the encoder was trained on 8×8: choose a data"),
        ((8, 16), (8, 8), 8, "has 8×16 train images, but the encoder was trained on 8×8: choose a data"),
        ((8, 8), (12, 12), None, "has 12×12 test images, but the encoder was trained on 8×8"),
        ((8, 10), (8, 10), None, "has 8×10 images, but encoders take square ones"),
    ],
)
def test_images_of_the_wrong_size_are_refused(tmp_path, train, test, side, told):
    name = write_arrays(tmp_path / "own.npz", train=train, test=test)
    if side:
        must_refuse(images().labelled, name, told)
    else:
        must_refuse(images(name, side=None).check, told)


@pytest.mark.parametrize(
    ("classes", "below", "told"),
    [
        ((), "", r"has no labels \(train\): nothing can be measured"),
        ((), "/train", r"has no labels \(train\): nothing can be measured"),  # two splits would not help
        (("cat",), "", r"has 'cat' as its only class: every classifier would be right"),
    ],
)
def test_images_on_which_nothing_can_be_measured_are_refused(tmp_path, classes, below, told):
    name = write_images(tmp_path / "images", classes=classes)
    must_refuse(images(root=str(tmp_path)).labelled, name + below, told)


def test_class_names_that_differ_between_the_splits_are_refused(tmp_path, monkeypatch):
    name = write_images(tmp_path / "images")
    (tmp_path / "images/test/dog").rename(tmp_path / "images/test/cow")
    with pytest.raises(InputError, match="cow is not a class of the training folder, which has cat, dog"):
        images(root=str(tmp_path)).labelled(name)

    def _other(name: str, split: str, *rest: Any, **options: Any) -> Dataset:
        found = load(name, split, *rest, **options)
        return replace(found, classes=(*found.classes[:-1], "ten")) if split == "test" else found

    monkeypatch.setattr("intnacl.runs.images.load", _other)
    must_refuse(images().labelled, "digits", r"different classes \(9, ten\): give both the same")


def test_classes_with_images_in_only_one_split_are_warned_about(tmp_path):
    with pytest.warns(InputWarning, match=r"3 of its classes have test images but no .* \(4, 5, 6\)"):
        images(write_arrays(tmp_path / "own.npz", test_classes=7)).check()
    with pytest.warns(InputWarning, match=r"1 of its classes have training images but no .* \(3\)"):
        images(write_arrays(tmp_path / "few.npz", test_classes=3)).check()
    images(write_arrays(tmp_path / "all.npz")).check()  # warnings are errors here


def monitor(name: str = "digits", here: Ranks = HERE, epochs: int = 1, holdout: int = 0) -> Any:
    found = images(name, holdout=holdout)
    return build_monitor(resolve({"train.monitor_epochs": epochs, "holdout": holdout}), found, here)


@pytest.mark.parametrize(("holdout", "name"), [(0, "knn_train"), (200, "knn")])
def test_the_monitor_measures_knn_accuracy(loaded, holdout, name):
    assert monitor(holdout=holdout)(torch.nn.Flatten())[name] > 80
    assert loaded == ["digits train"]  # test images are not even read


def test_there_is_no_monitor_on_other_ranks_or_if_it_is_off():
    for settings in ({"here": Ranks(1, 2, HERE.device)}, {"epochs": 0}):
        assert monitor(**settings) is None


def test_without_labels_the_monitor_only_measures_the_rank_of_the_features(tmp_path):
    np.savez(tmp_path / "plain.npz", images=np.eye(8 * 8 * 3, dtype=np.uint8).reshape(-1, 8, 8, 3))
    found = monitor(f"npz:{tmp_path / 'plain.npz'}")(torch.nn.Flatten())
    assert found == {"rankme": pytest.approx(8 * 8 * 3)}
