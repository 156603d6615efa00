"""Predictions of the run's classifier for pictures in any folders, as a CSV file."""

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from intnacl.data import load
from intnacl.errors import InputError
from intnacl.runs import predict as predicting
from intnacl.runs.folder import RunFolder
from intnacl.runs.opened import open_run
from intnacl.runs.predict import predict
from intnacl.runs.stages import train_and_measure
from intnacl.training.stop import Stop
from mistakes import must_refuse
from tiny_run import CPU, HERE, config, forbid_evaluation, measured, write_images


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Test digits as pictures: flat, in folders, below folders, and behind links; four are broken."""
    folder, digits = tmp_path / "pictures", load("digits", "test")
    for number in range(140):
        place = folder / ("", "some", "some/more")[number % 3] / f"{number:03d}, ü.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.images[number].permute(1, 2, 0).numpy()).save(place)
    (folder / "some" / "empty.png").touch()
    (folder / "some" / "notes.jpg").write_text("no picture")
    (folder / ".hidden").mkdir()
    shutil.copy(folder / "000, ü.png", folder / ".hidden" / "copy.png")
    (folder / "some" / "around").symlink_to(folder)
    (folder / "text.txt").touch()
    os.mkfifo(folder / "pipe.png")
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    return folder


def test_each_picture_has_the_class_and_confidence_of_the_classifier(tmp_path, pictures, monkeypatch):
    run = measured(tmp_path)
    forbid_evaluation(monkeypatch)
    monkeypatch.setattr("intnacl.runs.images.load", None)  # the training images may be gone
    found = predict(run, pictures)
    assert found.out.parent == run.folder.path
    assert found.images == 140
    assert list(found.broken) == ["gone.png", "pipe.png", "some/empty.png", "some/notes.jpg"]
    assert "cannot identify image file" in found.broken["some/notes.jpg"]
    table = rows(found.out)
    names = [row["file"] for row in table]
    assert sorted(names) == sorted(
        path.relative_to(pictures).as_posix()
        for path in pictures.rglob("[0-9]*.png")
        if not {"around", ".hidden"} & set(path.parts)
    )
    with torch.no_grad():
        wanted = run.classifier()(load("digits", "test").images[:140] / 255).softmax(1)
    for row in table:
        number = int(Path(row["file"]).name[:3])
        assert row["class"] == str(int(wanted[number].argmax()))
        assert float(row["confidence"]) == pytest.approx(float(wanted[number].max()), abs=1e-4)


def test_pictures_are_resized_like_the_test_images_of_the_run(tmp_path):
    name = write_images(tmp_path / "pets", side=21)
    folder = RunFolder(tmp_path / "run")
    settings = {"encoder.name": "small", "size": 8, "train.batch_size": 8, "train.epochs": 1}
    assert train_and_measure(config(dataset=name, **settings), folder, HERE, Stop()) is None
    run = open_run(folder, device=CPU)
    table = rows(predict(run, tmp_path / "pets" / "test", out=tmp_path / "p.csv").out)
    test = run.images.labelled(name).queries
    assert [row["file"] for row in table] == list(test.names)
    with torch.no_grad():
        wanted = run.classifier()(test.images / 255).softmax(1).max(1)
    assert [row["class"] for row in table] == [test.classes[label] for label in wanted.indices]
    np.testing.assert_allclose([float(row["confidence"]) for row in table], wanted.values, atol=1e-4)
    one = rows(predict(run, tmp_path / "pets" / "test" / "cat" / "0.png", out=tmp_path / "one.csv").out)
    assert one == [table[0] | {"file": "0.png"}]


def test_the_classifier_of_another_data_set_is_chosen_by_its_name(tmp_path):
    run, name = measured(tmp_path), write_images(tmp_path / "pets")
    table = rows(predict(run, tmp_path / "pets" / "test", dataset=name).out)
    assert {row["class"] for row in table} <= {"cat", "dog"}
    assert len(table) == 12


def test_a_file_appears_complete_or_not_at_all(tmp_path, pictures, monkeypatch):
    run, out = measured(tmp_path), tmp_path / "far" / "p.csv"
    real = predicting.attempt

    def stopped(item, size):
        if item.name.startswith("130"):
            raise KeyboardInterrupt
        return real(item, size)

    monkeypatch.setattr(predicting, "attempt", stopped)
    with pytest.raises(KeyboardInterrupt):
        predict(run, pictures, out=out)
    assert list(out.parent.iterdir()) == []


def test_a_file_without_read_permission_is_listed(tmp_path, pictures, monkeypatch):
    real = Path.read_bytes

    def read_bytes(path):
        if path.name.startswith("003"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    found = predict(measured(tmp_path), pictures)
    assert found.images == 139
    assert "Permission denied" in found.broken["003, ü.png"]


def test_memory_does_not_grow_with_the_number_of_pictures(tmp_path, pictures, monkeypatch):
    """The number of decoded pictures that are alive at a time is bounded."""
    run, alive, most, real = measured(tmp_path), set(), [], predicting.attempt

    class Counted(np.ndarray):
        def __del__(self):
            alive.discard(id(self))

    def counted(item, size):
        found = real(item, size)
        if isinstance(found, np.ndarray):
            found = found.view(Counted)
            alive.add(id(found))
            most.append(len(alive))
        return found

    monkeypatch.setattr(predicting, "attempt", counted)
    for number in range(6):
        os.link(pictures / "000, ü.png", pictures / f"again{number}.png")
    monkeypatch.setattr(predicting, "BATCH", 16)
    assert predict(run, pictures).images == 146
    assert max(most) <= 3 * 16  # one batch is being classified, one waits, one is being decoded


def test_mistakes_are_named_before_any_work(tmp_path, pictures):
    run = measured(tmp_path)
    must_refuse(predict, run, tmp_path / "nowhere", "is neither a folder nor a picture")
    must_refuse(predict, run, pictures / ".hidden" / "..", r"out='a.json' is not a table", out="a.json")
    (tmp_path / "none").mkdir()
    must_refuse(predict, run, tmp_path / "none", "holds no pictures .*give another folder")
    (tmp_path / "none" / "a.png").touch()
    with pytest.raises(InputError, match="no picture could be decoded; the first: a"):
        predict(run, tmp_path / "none", out=tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()
