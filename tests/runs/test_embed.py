"""Features as a file: those of the encoder, in the order of the images, with the images' names."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from intnacl.data import load
from intnacl.errors import InputError
from intnacl.evaluation.features import extract
from intnacl.plots.gallery import NEIGHBOURS, SHOWN
from intnacl.runs import embed
from intnacl.runs.commands import embed_command
from mistakes import refused
from shards import lengthen_index, write_shards
from tiny_run import trained


def test_the_file_holds_the_features_of_the_encoder(tmp_path, capsys):
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


def test_unlabelled_images_of_a_folder_have_names_and_a_single_one_has_no_neighbours(tmp_path):
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


def test_embedding_resumes_from_the_pieces_of_a_stopped_command(tmp_path, monkeypatch):
    run = trained(tmp_path)
    whole, out = tmp_path / "whole.npz", tmp_path / "out.npz"
    monkeypatch.setattr(embed, "PIECE", 500)  # of 1,442 images
    embed_command(run.folder, None, "train", whole, "cpu")
    seen: list[int] = []

    def extract_or_stop(encoder, images, **options):
        seen.append(len(images))
        if seen[2:] == [442]:
            raise KeyboardInterrupt
        return extract(encoder, images, **options)

    monkeypatch.setattr(embed, "extract", extract_or_stop)
    with pytest.raises(KeyboardInterrupt):
        embed_command(run.folder, None, "train", out, "cpu")
    assert not out.exists()
    assert seen == [500, 500, 442]
    for file in (out, tmp_path / "out.parquet"):  # the parquet file has its own pieces
        seen.clear()
        seen.extend([0, 0, 0])
        embed_command(run.folder, None, "train", file, "cpu")
        assert seen[3:] == ([442] if file == out else [500, 500, 442])
    assert out.read_bytes() == whole.read_bytes()
    with np.load(out) as found:
        wanted = extract(run.encoder, load("digits").images).numpy()
        np.testing.assert_allclose(found["features"], wanted, rtol=1e-5, atol=1e-6)
    table = pytest.importorskip("pyarrow.parquet").ParquetFile(tmp_path / "out.parquet")
    assert [table.metadata.row_group(i).num_rows for i in range(table.num_row_groups)] == [500, 500, 442]
    assert {path.name for path in tmp_path.iterdir()} == {
        "run", "whole.npz", "whole.png", "out.npz", "out.parquet", "out.png",
    }  # fmt: skip


def test_pieces_of_other_images_are_not_used_and_two_processes_do_not_mix(tmp_path, monkeypatch):
    run, out = trained(tmp_path), tmp_path / "out.npz"
    train, test = load("digits"), load("digits", "test")
    with (
        pytest.raises(InputError, match="another process is writing"),
        embed.features_in_pieces(run, train, out),
        embed.features_in_pieces(run, test, out),
    ):
        pass
    assert list(out.with_name("out.npz.pieces").glob("*.npy"))
    with embed.features_in_pieces(run, test, out) as features:
        assert features.shape[0] == sum(map(len, features)) == len(test)
    assert not features.folder.exists()


MEMORY = """
import resource, sys
from pathlib import Path
from intnacl.runs.commands import embed_command
embed_command(Path(sys.argv[1]), sys.argv[2], "train", Path(sys.argv[3]), "cpu", Path(sys.argv[4]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_memory_does_not_grow_with_the_number_of_images(tmp_path, kind):
    run, name = trained(tmp_path, stream="always"), write_shards(tmp_path / "shards", 500, size=(8, 8))
    used = {}
    for count in (40_000, 400_000):
        root = tmp_path / f"root{count}"
        load(name, size=8, root=root, room=0)
        lengthen_index(root, count)
        words = [str(run.folder), name, str(tmp_path / f"{count}.{kind}"), str(root)]
        printed = subprocess.check_output([sys.executable, "-c", MEMORY, *words], text=True)
        used[count] = int(printed.split()[-1])
    print(used)
    assert used[400_000] <= 1.1 * used[40_000], used


test_an_output_of_another_format_is_refused_before_any_work = refused(
    lambda out: embed_command(Path("nowhere"), None, "train", Path(out), "cpu"),
    ("features.csv", r"end its name in \.npz"),
)
