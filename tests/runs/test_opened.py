"""Run folders that cannot be measured, and images that do not fit, end in a message with a remedy."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from intnacl.errors import InputError
from intnacl.evaluation.features import extract
from intnacl.models.encoders import build_model
from intnacl.runs.opened import load_labelled, open_subject, pair
from intnacl.runs.resolve import resolve
from tiny_run import CPU, config, trained, write_images


def test_it_holds_the_trained_encoder_and_its_size(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    assert subject.image_size == 8
    assert len(subject.checksum) == 64
    assert not subject.encoder.training
    train, test = subject.load("digits")
    assert (len(train), len(test)) == (1442, 355)
    assert pair(test)[1].shape == (355,)
    assert torch.isfinite(subject.encoder(test.images[:4] / 255)).all()


def test_a_folder_may_be_a_text(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    assert open_subject(str(subject.folder), CPU).checksum == subject.checksum


def test_data_sets_may_have_moved_since(tmp_path: Path) -> None:
    run = trained(tmp_path).folder
    with pytest.raises(InputError, match=f"{tmp_path / 'moved'}"):
        open_subject(run, CPU, tmp_path / "moved").load("tinyimagenet")


def test_features_of_a_data_set_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, subject = f"folder:{tmp_path / 'images'}", trained(tmp_path)
    write_images(tmp_path / "images")
    digits = subject.load("digits")
    first = subject.features(*digits)
    assert torch.equal(first[1], extract(subject.encoder, digits[1].images))
    assert [len(features) for features in subject.features(*subject.load(name))] == [12, 12]
    again = subject.features(*digits)
    assert again[0] is not first[0]  # only the last data set's are kept
    assert torch.equal(again[0], first[0])
    monkeypatch.setattr("intnacl.runs.opened.extract", None)
    assert subject.features(*subject.load("digits")) is again


def test_features_of_another_encoder_are_its_own(tmp_path: Path) -> None:
    subject = trained(tmp_path)
    digits = subject.load("digits")
    first = subject.features(*digits)
    other = build_model(subject.config.encoder, image_size=8, adversarial=False, seed=9).encoder
    assert not torch.equal(replace(subject, encoder=other).features(*digits)[0], first[0])


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no run folder: it has no config\.json"):
        open_subject(tmp_path, CPU)


def test_a_run_without_an_encoder(tmp_path: Path) -> None:
    folder = trained(tmp_path).folder
    (folder / "encoder.safetensors").unlink()
    with pytest.raises(InputError, match="not trained to its end yet: run its `intnacl pretrain`"):
        open_subject(folder, CPU)
    for path in (folder / "checkpoints").iterdir():
        path.rename(tmp_path / path.name)
    with pytest.raises(InputError, match=r"has no encoder\.safetensors: train it first"):
        open_subject(folder, CPU)
    (folder / "result.json").write_text("{}")
    with pytest.raises(InputError, match=r"is a record without weights: repeat its run with another --out"):
        open_subject(folder, CPU)


def test_a_damaged_encoder(tmp_path: Path) -> None:
    folder = trained(tmp_path).folder
    (folder / "encoder.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="is no encoder of intnacl"):
        open_subject(folder, CPU)


def test_folders_of_images_are_resized_to_the_encoder(tmp_path: Path) -> None:
    name = write_images(tmp_path / "images", side=20)
    settings = resolve({"root": str(tmp_path)})
    train, test = load_labelled(settings, name, 8)
    assert train.images.shape == (12, 3, 8, 8)
    assert test.classes == ("cat", "dog")


@pytest.mark.parametrize("size", [(16, 16), (4, 4), (8, 16)])
def test_images_of_another_size(tmp_path: Path, size: tuple[int, int]) -> None:
    import numpy as np

    images, labels = np.zeros((4, *size, 3), np.uint8), np.arange(4) % 2
    splits = {
        f"{split}_{k}": v for split in ("train", "test") for k, v in (("images", images), ("labels", labels))
    }
    np.savez(tmp_path / "other.npz", **splits)
    told = (
        f"has {size[0]}×{size[1]} train images, but the encoder is trained on 8×8: choose a data set of that"
    )
    with pytest.raises(InputError, match=told):
        load_labelled(config(), f"npz:{tmp_path / 'other.npz'}", 8)


def test_images_without_labels(tmp_path: Path) -> None:
    name = write_images(tmp_path / "images", classes=())
    with pytest.raises(InputError, match=r"has no labels \(train\): nothing can be measured"):
        load_labelled(resolve({"root": str(tmp_path)}), name, 8)


def test_images_of_one_class(tmp_path: Path) -> None:
    name = write_images(tmp_path / "images", classes=("cat",))
    with pytest.raises(InputError, match=r"has 'cat' as its only class: every classifier would be right"):
        load_labelled(resolve({"root": str(tmp_path)}), name, 8)


def test_images_with_neither_labels_nor_a_test_split(tmp_path: Path) -> None:
    """Moving them into two splits would not help: what they lack is labels."""
    write_images(tmp_path / "images", classes=())
    with pytest.raises(InputError, match=r"has no labels \(train\): nothing can be measured"):
        load_labelled(resolve({"root": str(tmp_path)}), f"folder:{tmp_path / 'images' / 'train'}", 8)


def test_splits_with_different_classes(tmp_path: Path) -> None:
    name = write_images(tmp_path / "images")
    (tmp_path / "images/test/dog").rename(tmp_path / "images/test/cow")
    with pytest.raises(InputError, match="cow is no class of the training folder, which has cat, dog"):
        load_labelled(resolve({"root": str(tmp_path)}), name, 8)


def test_class_names_that_differ_between_the_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from intnacl.data import load
    from intnacl.runs import opened as subject

    def _load(name: str, split: str, root: str | None, *, size: int | None) -> object:
        found = load(name, split, root, size=size)
        return replace(found, classes=(*found.classes[:-1], "ten")) if split == "test" else found

    monkeypatch.setattr(subject, "load", _load)
    with pytest.raises(InputError, match=r"different classes \(9, ten\): give both the same"):
        load_labelled(config(), "digits", 8)
