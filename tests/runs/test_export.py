"""Exported encoders give the run's features in other programs, by the code on their model card."""

import contextlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import intnacl
from intnacl.errors import InputError
from intnacl.models.encoders import build_model
from intnacl.models.weights import save_encoder
from intnacl.runs.attack import attacks_at, measure_attacks
from intnacl.runs.export import check_close, export_run, model_card
from intnacl.runs.folder import RunFolder
from intnacl.runs.overview import Overview
from intnacl.runs.resolve import resolve
from mistakes import must_refuse
from tiny_run import measured, trained, write_images


def run_of(name: str, folder: Path, side: int = 32, **changes: str) -> torch.nn.Module:
    """Write a run folder with an encoder whose batch norms have statistics, and return the encoder."""
    settings = {"dataset": "cifar10", "encoder.name": name, "encoder.std": (0.2, 0.25, 0.3)}
    config = resolve(settings | {f"encoder.{key}": value for key, value in changes.items()})
    RunFolder(folder).begin(config)
    encoder = build_model(config.encoder, image_size=side, adversarial=False, seed=0).encoder
    encoder.train()(torch.rand(8, 3, side, side))
    save_encoder(encoder, config.encoder, side, folder / "encoder.safetensors")
    return encoder.eval()


def check_card(
    encoder: torch.nn.Module, run: Path, format: str, side: int, rtol: float = 1e-5, atol: float = 1e-5
) -> None:
    """Export, and run the card's code in the exported folder: it must give the encoder's features."""
    out = run.with_name("out")
    assert export_run(run, format, out).parent == out
    scope: dict[str, Any] = {}
    with contextlib.chdir(out):
        exec((out / "README.md").read_text().split("```python\n")[1].split("\n```")[0], scope)
    pixels, features = (torch.as_tensor(scope[name]) for name in ("pixels", "features"))
    assert pixels.shape[1:] == (3, side, side)
    with torch.no_grad():
        torch.testing.assert_close(features, encoder(pixels), rtol=rtol, atol=atol)


@pytest.mark.parametrize(
    ("name", "format", "side"),
    [
        ("resnet18", "safetensors", 32), ("resnet18", "torchvision", 32), ("resnet50", "torchvision", 32),
        ("resnet18", "timm", 32), ("timm:resnet18", "timm", 32), ("timm:vit_tiny_patch16_224", "timm", 32),
        ("resnet18", "timm", 72), ("timm:resnet18", "timm", 72),
        ("timm:tf_mobilenetv3_small_minimal_100", "timm", 32),
        ("timm:tf_mobilenetv3_small_minimal_100", "timm", 72),  # its own stem, padded like TensorFlow's
    ],
)  # fmt: skip
def test_the_code_on_the_card_gives_the_same_features(tmp_path, name, format, side):
    pytest.importorskip({"timm": "timm", "torchvision": "torchvision"}.get(format, "torch"))
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    check_card(run_of(name, tmp_path / "run", side), tmp_path / "run", format, side)


def test_from_pretrained_loads_the_exported_folder(tmp_path):
    run = measured(tmp_path)
    export_run(run.folder, "safetensors")
    path = export_run(run.folder, "safetensors")  # over the former one
    assert path == run.folder / "export-safetensors" / "encoder.safetensors"
    pixels = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        assert intnacl.from_pretrained(path.parent)(pixels).equal(run.encoder(pixels))


def test_the_card_shows_the_main_figures_and_links_to_files_with_the_rest(tmp_path):
    run = measured(tmp_path)
    result = Overview(run).result()
    out = export_run(run.folder, "safetensors").parent
    card = (out / "README.md").read_text()
    assert re.findall("^#+ .*", card, re.MULTILINE) == [
        "# small, simclr, digits", "## Use", "## Figures", "## Training", "## Limits",
    ]  # fmt: skip
    row = result["accuracy"]["digits"]
    assert f"| digits | {row['clean']:.2f} | {row['fgsm']:.2f} | {row['pgd']:.2f} |" in card
    assert "Adam, 20 epochs of batches of 256 at rate 0.01" in card
    assert "scored in float32 without TF32; attacks of many steps search in TF32" in card
    assert "PGD takes 10 steps from 2 starts." in card
    assert "| learning rate | 0.001, constant |" in card
    assert '"evaluation"' not in card
    for name, wanted in (("config.json", run.folder.config), ("result.json", run.folder.result)):
        assert f"[{name}]({name})" in card
        assert json.loads((out / name).read_text()) == json.loads(wanted.read_text())
    measure_attacks(run, "digits", attacks_at(["pgd"], 0.1, 64))  # alone, it adds no second worst case
    figures, again = (
        text.split("## Training")[0].split("## Figures")[1]
        for text in (card, model_card(run.config, Overview(run).result(), ""))
    )
    assert figures == again
    assert figures.count("| worst case | 0.1 |") == 1


@pytest.mark.parametrize("own", [False, True])
def test_the_hub_reads_the_header_of_the_card(tmp_path, own):
    hub = pytest.importorskip("huggingface_hub")
    run = measured(tmp_path)
    name = write_images(tmp_path / 'a: "private" place/cats, #1') if own else "digits"
    measure_attacks(run, name, attacks_at(["pgd_tuned"], 8 / 255, None))
    result = Overview(run).result()
    card = model_card(replace(run.config, dataset=name), result, "", library="timm")
    found = hub.ModelCard(card).data
    assert (found.library_name, found.license) == ("timm", "unknown")
    assert {"adversarial-robustness", "simclr", "small"} <= set(found.tags)
    assert found.datasets == (None if own else ["digits"])
    (shown,) = {one.dataset_name for one in found.eval_results} - ({"digits"} if own else set())
    assert shown == ("folder:cats, #1" if own else "digits")
    figures = {one.metric_name: one.metric_value for one in found.eval_results if one.dataset_name == shown}
    assert figures["accuracy, %"] == round(result["accuracy"][name]["clean"], 2)
    assert [key for key in figures if "PGD tuned, eps 8/255" in key]
    assert "private" not in card


def test_an_export_refuses_the_folder_of_another_run_and_does_not_change_its_own(tmp_path):
    run, other = trained(tmp_path / "one"), trained(tmp_path / "other")
    before = other.folder.encoder.read_bytes()
    must_refuse(export_run, run.folder, "safetensors", other.folder.path, "is the folder of another run")
    assert other.folder.encoder.read_bytes() == before
    export_run(run.folder, "safetensors", run.folder.path)
    assert (run.folder.path / "README.md").exists()
    assert run.folder.state() == "trained", "it has got a result without being measured"


def test_the_card_of_a_run_that_was_not_attacked_or_not_measured(tmp_path):
    run = measured(tmp_path / "measured", **{"evaluation.eps": ()})
    result = Overview(run).result()
    clean = f"{result['accuracy']['digits']['clean']:.2f}"
    assert f"| digits | {clean} | – | – |" in model_card(run.config, result, "")
    run = trained(tmp_path)
    assert "Not measured yet" in model_card(run.config, Overview(run).result(), "")


@pytest.mark.parametrize(("name", "side"), [("resnet18", 32), ("small", 8)])
def test_onnx_gives_the_same_features_for_any_batch(tmp_path, name, side):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    encoder = run_of(name, tmp_path / "run", side)
    session = onnxruntime.InferenceSession(str(export_run(tmp_path / "run", "onnx")))
    check_card(encoder, tmp_path / "run", "onnx", side, rtol=1e-3, atol=1e-4)
    for count in (1, 5):
        pixels = torch.rand(count, 3, side, side)
        (found,) = session.run(None, {"pixels": pixels.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(found), encoder(pixels), rtol=1e-3, atol=1e-4)


def test_different_features_are_refused():
    encoder, x = torch.nn.Identity(), torch.rand(2, 4)
    check_close(x + 1e-6, encoder, x)
    for wrong in (x + 0.1, x * torch.nan):
        must_refuse(check_close, wrong, encoder, x, "differ from torch's")


@pytest.mark.parametrize(
    ("name", "format"), [("resnet18", "torchvision"), ("resnet18", "timm"), ("timm:resnet18", "timm")]
)
def test_an_encoder_without_its_batch_norms_has_no_counterpart_elsewhere(tmp_path, name, format):
    pytest.importorskip("timm")
    run_of(name, tmp_path / "run", norm="none")
    told = r"without its batch norms \(encoder.norm=none\)"
    must_refuse(export_run, tmp_path / "run", format, tmp_path / "out", told)
    assert not (tmp_path / "out").exists()
    encoder = run_of("timm:convnext_atto", tmp_path / "never" / "run", norm="none")
    check_card(encoder, tmp_path / "never" / "run", "timm", 32)


def test_an_export_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def _session(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(run=lambda _, feed: [-torch.ones(len(feed["pixels"]), 128).numpy()])

    folder = measured(tmp_path).folder
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=_session))
    monkeypatch.setitem(sys.modules, "onnxscript", SimpleNamespace())
    monkeypatch.setattr(torch.onnx, "export", lambda model, x, path, **_: Path(path).write_bytes(b"wrong"))
    must_refuse(export_run, folder, "onnx", tmp_path / "out", "not usable")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"out/encoder\.safetensors could not be written"):
        export_run(folder, "safetensors", tmp_path / "file" / "out")


def test_mistakes_are_named(tmp_path, monkeypatch):
    folder = measured(tmp_path).folder
    must_refuse(export_run, folder, "onx", "format='onx' is unknown; did you mean 'onnx'")
    for format in ("torchvision", "timm"):
        must_refuse(export_run, folder, format, f"encoder 'small' has no counterpart in {format}")
    card, file = tmp_path / "project" / "README.md", tmp_path / "file"
    card.parent.mkdir()
    card.write_text("# Mine")
    file.touch()
    told = r"README\.md is not a model card and would be lost"
    must_refuse(export_run, folder, "safetensors", card.parent, told)
    assert card.read_text() == "# Mine"
    must_refuse(export_run, folder, "safetensors", file, "is a file: give a folder")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    must_refuse(export_run, folder, "onnx", r"pip install '/.*\[onnx\]'")
    assert not list(folder.path.glob("export-*")), "a refused export leaves no folder"


def test_names_of_data_sets_are_escaped_in_the_card(tmp_path):
    run = measured(tmp_path)
    text = json.dumps(Overview(run).result()).replace('"digits"', '"folder:<b>`_|x"')
    config = replace(run.config, dataset="folder:<b>`_|x\n#")
    prose = model_card(config, json.loads(text), "").split("\n---\n", 1)[1]  # below the YAML header
    assert "<b>" not in prose
    assert r"| folder:&lt;b&gt;\`\_\|x |" in prose
    assert r" epochs on folder:&lt;b&gt;\`\_\|x\\n\#" in prose
