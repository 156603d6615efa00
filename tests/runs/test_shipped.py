"""Encoders that ship with the package load anywhere by name, and nothing is written to their folders."""

import contextlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import intnacl
from intnacl.attacks.named import named_attack
from intnacl.cli import app
from intnacl.data import load
from intnacl.models import shipped
from intnacl.models.weights import checksum_file, has_encoder, pieces, read_encoder
from intnacl.runs.export import export_run
from intnacl.runs.finetune import finetuned_folder, finetuning_of
from intnacl.runs.folder import RunFolder
from intnacl.runs.predict import predict
from mistakes import must_refuse
from ship import LARGEST, REFERENCES, pack, photographs, round_run
from tiny_run import measured

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pretrained.md").read_text()
NAMES = intnacl.pretrained()
DIGITS = "digits-intnacl"


def content(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(autouse=True)
def _nothing_is_written_to_the_package():
    before = content(shipped.SHIPPED)
    yield
    assert content(shipped.SHIPPED) == before


def test_every_shipped_encoder_is_complete():
    assert DIGITS in NAMES
    assert {path.name for path in shipped.SHIPPED.iterdir()} == set(NAMES)
    for name in NAMES:
        folder = RunFolder(shipped.SHIPPED / name)
        assert folder.read_result()["protocol"]["encoder_sha256"] in checksum_file(folder.encoder).read_text()
        assert max(map(len, content(folder.path).values())) <= LARGEST
        card = (folder / "README.md").read_text()
        assert f'intnacl.from_pretrained("{name}")' in card
        assert 'license: "apache-2.0"' in card
        run = intnacl.open_run(name, device="cpu")
        clean = run.result["accuracy"][run.config.dataset]["clean"]
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"| {clean:.2f} |" in row
        assert str(Path.home()) not in folder.result.read_text() + folder.config.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_features_of_photographs_equal_the_reference(name):
    encoder = intnacl.from_pretrained(name)
    wanted = load_file(REFERENCES / f"{name}.safetensors")["features"]
    assert not encoder.training
    with torch.no_grad():
        torch.testing.assert_close(encoder(photographs(encoder.image_size)), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_classifier_has_the_accuracy_of_the_result(name):
    run = intnacl.open_run(name, device="cpu")
    if run.config.dataset != "digits":
        pytest.skip("its images are not in the package")
    classifier, (images, labels) = run.classifier("digits"), pixels_and_labels(run)
    assert classifier.linear.weight.dtype == torch.float32
    with torch.no_grad():
        right = int((classifier(images / 255).argmax(1) == labels).sum())
    assert 100 * right / len(labels) == pytest.approx(run.result["accuracy"]["digits"]["clean"])
    assert right / len(labels) > 0.95


def test_the_page_shows_the_figures_of_the_digits():
    rows = {
        (row["name"], row["eps"]): f"{row['accuracy']:.2f}"
        for row in intnacl.open_run(DIGITS, device="cpu").result["attacks"]
    }
    assert f"| {rows['fgsm', 0.05]} | {rows['pgd_tuned', 0.1]} |" in PAGE


def pixels_and_labels(run: intnacl.runs.Run) -> tuple[torch.Tensor, torch.Tensor]:
    test = run.images.labelled("digits").queries
    return test.images, test.labels


def test_the_weights_are_those_of_torch_hub():
    encoder, pixels = intnacl.from_pretrained(DIGITS), torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        for name in NAMES:
            loaded = torch.hub.load(str(ROOT), name.replace("-", "_"), source="local")
            assert name != DIGITS or torch.equal(loaded(pixels), encoder(pixels))


def test_torch_hub_needs_no_installation():
    code = f"import torch; print(torch.hub.load({str(ROOT)!r}, 'digits_intnacl', source='local').feature_dim)"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "128"


def test_measuring_goes_to_a_copy(tmp_path):
    run = intnacl.open_run(DIGITS, device="cpu")
    fgsm = named_attack("fgsm", 0.03, images=8)
    told = rf"{DIGITS} ships with the package, where nothing is written: give --out FOLDER"
    must_refuse(run.measure, fgsm, told)
    must_refuse(run.measure, told)
    must_refuse(run.classifier, told, protocol="alf")
    copy = intnacl.open_run(DIGITS, out=tmp_path / "copy", device="cpu")
    before = copy.result
    assert before is None
    assert copy.encoder_sha256 == run.encoder_sha256
    (row,) = copy.measure(fgsm)
    assert row.figures["images"] == len(pixels_and_labels(run)[0])
    assert copy.result["accuracy"] == run.result["accuracy"]
    assert len(copy.result["attacks"]) > len(run.result["attacks"])
    again = intnacl.open_run(DIGITS, out=tmp_path / "copy", device="cpu")
    assert again.result == copy.result
    other = measured(tmp_path / "other")
    told = "holds a run with another configuration"
    must_refuse(intnacl.open_run, DIGITS, told, out=other.folder.path)


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (("attack", "--dataset", "digits", "--eps", "0.03", "--attacks", "fgsm", "--images", "8"), "run"),
        (("probe", "--protocol", "clae", "--epochs", "1"), "run"),
        (("knn", "--k", "5"), "run"),
        (("corruptions", "--only", "contrast"), "run"),
        (("embed", "--split", "test"), "features.npz"),
        (("export",), "exported"),
    ],
)
def test_commands_accept_a_name_and_write_to_out(words, out, tmp_path):
    word, *flags = words
    given = [*flags, *(() if word == "export" else ("--device", "cpu"))]
    run_command = partial(app, result_action="return_value")
    told = f"{DIGITS} ships with the package, where nothing is written: give --out"
    must_refuse(run_command, [word, DIGITS, *given], told)
    run_command([word, DIGITS, *given, "--out", str(tmp_path / out)])
    if out == "run":
        assert (tmp_path / "run" / "report.html").exists()
        run_command([word, str(tmp_path / "run"), *given])  # a run as any other
    elif out == "features.npz":
        assert np.load(tmp_path / out)["features"].shape == (355, 128)
    else:
        pixels = torch.rand(2, 3, 8, 8)
        with torch.no_grad():
            exported = intnacl.from_pretrained(tmp_path / out)(pixels)
            assert torch.equal(exported, intnacl.from_pretrained(DIGITS)(pixels))


def test_a_shipped_encoder_can_be_fine_tuned_by_name():
    run = intnacl.open_run(DIGITS, device="cpu")
    config = finetuning_of(run, "digits")
    assert config.finetune.encoder == DIGITS
    must_refuse(finetuned_folder, run, config, "give --out FOLDER")


def test_it_classifies_pictures_by_name(tmp_path):
    run, image = intnacl.open_run(DIGITS, device="cpu"), load("digits", "test").images[0]
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / "one.png")
    must_refuse(predict, run, tmp_path, "give --out FILE.csv")
    assert predict(run, tmp_path, out=tmp_path / "found.csv").images == 1


def test_a_shipped_encoder_can_be_the_teacher(tmp_path):
    settings = {"objective": "distill", "distill.teacher": DIGITS, "train.epochs": 1, "evaluation.images": 8}
    run = intnacl.runs.run(settings, recipe="robust", out=tmp_path / "run", device="cpu", say=str)
    assert run.config.distill.teacher == DIGITS
    teacher = intnacl.open_run(tmp_path / "run" / "teacher", device="cpu")
    assert teacher.encoder_sha256 == intnacl.open_run(DIGITS, device="cpu").encoder_sha256


def test_an_existing_path_takes_precedence_over_a_name(tmp_path):
    other = measured(tmp_path)
    with contextlib.chdir(tmp_path):
        (tmp_path / "run").rename(DIGITS)
        assert intnacl.open_run(DIGITS, device="cpu").encoder_sha256 == other.encoder_sha256
    must_refuse(intnacl.from_pretrained, "digits-intncl", f"come with the package: .*{DIGITS}")
    must_refuse(intnacl.open_run, "digits-intncl", f"is not a run folder: .* the package ships with {DIGITS}")


def test_a_run_is_rounded_and_packed_in_pieces_that_are_joined(tmp_path, monkeypatch):
    run = measured(tmp_path)
    work = RunFolder(tmp_path / "work")
    features = run.features("digits")[1]
    round_run(run, work)
    small = intnacl.open_run(work, device="cpu")
    assert work.encoder.stat().st_size < 0.6 * run.folder.encoder.stat().st_size
    assert torch.cosine_similarity(small.features("digits")[1], features).min() > 0.999
    small.measure()
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path / "shipped")
    folder = RunFolder(pack(small, "in-pieces", tmp_path / "shipped", largest=50_000))
    assert len(pieces(folder.encoder)) == 4
    assert not folder.encoder.exists()
    assert has_encoder(folder.encoder)
    assert read_encoder(folder.encoder) == work.encoder.read_bytes()
    assert intnacl.pretrained() == ["in-pieces"]
    packed = intnacl.open_run("in-pieces", device="cpu")
    assert torch.equal(packed.features("digits")[1], small.features("digits")[1])
    assert packed.classifier("digits")
    copied = intnacl.open_run("in-pieces", out=tmp_path / "copied", device="cpu")
    exported = export_run(Path("in-pieces"), "safetensors", tmp_path / "exported")
    assert copied.folder.encoder.read_bytes() == exported.read_bytes() == work.encoder.read_bytes()
    last = pieces(folder.encoder)[-1]
    last.write_bytes(last.read_bytes()[:-1] + b"?")
    must_refuse(intnacl.from_pretrained, "in-pieces", "is damaged: .*Install intnacl again")
    last.unlink()
    must_refuse(intnacl.from_pretrained, "in-pieces", "is damaged: .*Install intnacl again")
