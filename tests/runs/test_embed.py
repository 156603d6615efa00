"""Features as a file: those of the encoder, in the order of the images, with their names."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from intnacl.data import load
from intnacl.evaluation.features import extract
from intnacl.plots.gallery import NEIGHBOURS, SHOWN
from intnacl.runs.commands import embed_command
from mistakes import refused
from tiny_run import trained


def test_the_file_holds_the_encoders_features(tmp_path, capsys):
    run = trained(tmp_path)
    embed_command(run.folder, None, "test", None, "cpu")
    out = run.folder / "features-digits-test.npz"
    test = load("digits", "test")
    with np.load(out) as found:
        wanted = extract(run.encoder, test.images)
        np.testing.assert_allclose(found["features"], wanted.numpy(), rtol=1e-5, atol=1e-6)
        assert found["labels"].tolist() == test.labels.tolist()
        assert tuple(found["classes"]) == test.classes
        assert "names" not in found
    printed = capsys.readouterr().out
    assert f"{len(test)} images of digits, test: features {tuple(wanted.shape)}" in printed
    with Image.open(out.with_suffix(".png")) as picture:
        assert picture.width / picture.height == pytest.approx((NEIGHBOURS + 1) / SHOWN, rel=0.2)


def test_unlabelled_images_of_a_folder_have_their_names_and_one_has_no_neighbours(tmp_path):
    run, folder, out = trained(tmp_path), tmp_path / "new", tmp_path / "far" / "new.npz"
    folder.mkdir()
    for name, grey in (("b.png", 200), ("a.png", 20), ("c.png", 90)):
        Image.new("L", (11, 9), grey).save(folder / name)
    (folder / "broken.png").write_bytes(b"no image")
    with pytest.warns(match="1 of 4 images are broken"):
        embed_command(run.folder, f"folder:{folder}", "train", out, "cpu", tmp_path)
    with np.load(out) as found:
        assert found["names"].tolist() == ["a.png", "b.png", "c.png"]
        assert set(found) == {"features", "names"}
        bright = torch.full((1, 3, 8, 8), 200, dtype=torch.uint8)
        np.testing.assert_allclose(found["features"][1:2], extract(run.encoder, bright).numpy(), rtol=1e-4)
    for name in ("b.png", "c.png", "broken.png"):
        (folder / name).unlink()
    one = tmp_path / "one.npz"
    embed_command(run.folder, f"folder:{folder}", "train", one, "cpu", tmp_path)
    assert [path.with_suffix(".png").exists() for path in (out, one)] == [True, False]


test_an_output_that_is_no_archive_is_refused_before_any_work = refused(
    lambda out: embed_command(Path("nowhere"), None, "train", Path(out), "cpu"),
    ("features.csv", r"end its name in \.npz"),
)
