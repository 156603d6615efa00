"""`datasets` as a user calls it."""

import contextlib
from pathlib import Path

import pytest
import torch
from torch import Tensor

from command_line import intnacl
from intnacl.cli import app
from intnacl.cli.datasets import trained_encoder
from intnacl.plots import gallery
from intnacl.runs.resolve import resolve
from intnacl.training.objectives import AdversaryConfig, Contrastive
from mistakes import must_refuse
from tiny_run import trained


def test_datasets_lists_names_sizes_and_the_place_of_files(tmp_path):
    result = intnacl("datasets", "--root", str(tmp_path))
    assert result.returncode == 0
    for word in ("digits", "cifar100", "50,000 + 10,000", "folder:PATH", str(tmp_path), "INTNACL_DATA"):
        assert word in result.stdout


def test_without_out_each_picture_gets_its_own_name_below_runs(tmp_path, capsys):
    written = []
    with contextlib.chdir(tmp_path):
        for words in ("--rows 4", "--rows 5", "--rows 4", "--rows 4 --split test"):
            app(["datasets", "show", "digits", *words.split(), "--eps", "0"], result_action="return_value")
            written.append(Path(capsys.readouterr().out.split("written: ")[1].strip()))
    assert written[0] == written[2]
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert set(tmp_path.rglob("*.png")) == {tmp_path / path for path in written}
    assert len(set(written)) == 3
    assert written[3].name.startswith("digits-test-")


def columns_of(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Tensor]:
    """Return the columns that `datasets show` draws."""
    drawn: list[dict[str, Tensor]] = []
    monkeypatch.setattr(gallery, "draw_gallery", lambda columns, captions: drawn.append(columns))
    monkeypatch.setattr(gallery, "save_gallery", lambda figure, out: None)
    app(["datasets", "show", "digits", *words], result_action="return_value")
    return drawn[0]


def test_the_untrained_adversarial_view_is_that_of_the_first_step(monkeypatch):
    words = ("--rows", "6", "--augment", "paper", "--seed", "3")
    config = resolve({"dataset": "digits", "augment": "paper", "seed": 3}, preset="adv")
    columns = columns_of(monkeypatch, *words, "--eps", str(config.adversary.eps))
    objective = Contrastive(
        config.loss, config.encoder, config.augment, config.adversary, image_size=8, seed=3
    )
    seen: list[Tensor] = []
    objective.parts.embed = lambda x, **kind: seen.append(x) or objective.model(x, **kind)
    objective(columns["original"], None, torch.arange(6), torch.tensor(0))
    torch.testing.assert_close(columns["adversarial"], seen[0][-6:], rtol=0, atol=1e-6)


def test_a_trained_encoder_has_its_own_adversarial_views(tmp_path, monkeypatch):
    folder = trained(tmp_path).folder
    words = ("--rows", "6", "--eps", "0.1")
    own, untrained = columns_of(monkeypatch, *words, "--run", str(folder)), columns_of(monkeypatch, *words)
    assert torch.equal(own["anchor"], untrained["anchor"])
    assert (own["adversarial"] != untrained["adversarial"]).any()
    must_refuse(trained_encoder, folder, 32, r"was trained on 8×8 images, but these are 32×32: .*--size 8")


def test_datasets_show_draws_the_views_of_training(monkeypatch):
    columns = columns_of(monkeypatch, "--rows", "4")
    assert list(columns)[-2:] == ["adversarial", "change × 33"]
    change = (columns["adversarial"] - columns["anchor"]).abs().amax()
    assert change.item() == pytest.approx(AdversaryConfig().eps, abs=1e-6)
    shown = columns_of(monkeypatch, "--rows", "4", "--eps", "0")
    assert "adversarial" not in shown
    trained = gallery.view_columns(shown["original"], resolve({"dataset": "digits"}).augment)
    assert torch.equal(shown["anchor"], trained["anchor"])
    named = columns_of(monkeypatch, "--rows", "4", "--eps", "0", "--augment", "none")
    assert torch.equal(named["anchor"], shown["original"] / 255)


def test_datasets_show_names_wrong_values(monkeypatch, tmp_path):
    for words, message in {
        ("--eps", "8"): r"eps=8\.0 is out of range",
        ("--rows", "100000"): "rows=100000 must be a whole number from 1 to 250",
        ("--rows", "1", "--mixed", "0"): "one image has no adversarial view",
        ("--run", str(tmp_path)): r"encoder\.safetensors does not exist",
        (
            "--seed",
            str(2**64),
        ): rf"^seed={2**64} is out of range: it must fit into a signed 64-bit integer\.$",
        ("--augment", "digit"): "augment='digit' is unknown",
    }.items():
        must_refuse(columns_of, monkeypatch, *words, message)


def test_datasets_show_skips_broken_images_or_refuses_them(tmp_path):
    from PIL import Image

    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "bad.png").write_bytes(b"")
    for i in range(3):
        Image.new("RGB", (8, 8), (i, i, i)).save(tmp_path / "pets" / f"{i}.png")
    name, out = f"folder:{tmp_path / 'pets'}", str(tmp_path / "grid.png")
    words = ("datasets", "show", name, "--root", str(tmp_path), "--out", out)
    skipping, again, strict = intnacl(*words), intnacl(*words), intnacl(*words, "--strict")
    message = f"{name}, train: 1 of 4 images are broken: bad.png (empty)"
    assert skipping.returncode == 0
    assert skipping.stderr == f"intnacl: warning: {message}; they are skipped\n"
    assert "3 images, 32×32, unlabelled, 1 broken skipped" in skipping.stdout
    assert again.stderr == "", "it was said when they were decoded"
    assert again.stdout == skipping.stdout
    assert strict.returncode == 2
    assert strict.stderr.startswith(f"intnacl: {message}. Repair or remove them")
