"""Exported encoders give the run's features in other programs, by the very code of their model card."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import intnacl
from intnacl.errors import InputError
from intnacl.models.encoders import build_model
from intnacl.models.weights import save_encoder
from intnacl.runs.attack import attacks_at, measure_attacks
from intnacl.runs.export import check_close, export_run, model_card
from intnacl.runs.folder import RunFolder
from intnacl.runs.resolve import resolve
from intnacl.runs.result import Overview
from tiny_run import measured, trained


def run_of(name: str, folder: Path, side: int = 32, **changes: str) -> torch.nn.Module:
    """A run folder with an encoder whose batch norms have seen something; the encoder."""
    settings = {"dataset": "cifar10", "encoder.name": name, "encoder.std": (0.2, 0.25, 0.3)}
    config = resolve(settings | {f"encoder.{key}": value for key, value in changes.items()})
    RunFolder(folder).begin(config)
    encoder = build_model(config.encoder, image_size=side, adversarial=False, seed=0).encoder
    encoder.train()(torch.rand(8, 3, side, side))
    save_encoder(encoder, config.encoder, side, folder / "encoder.safetensors")
    return encoder.eval()


def check_card(encoder: torch.nn.Module, run: Path, format: str, side: int) -> None:
    """Export, and run the card's code in the exported folder: the features must be the encoder's."""
    out = run.with_name("out")
    assert export_run(run, format, out).parent == out
    card = (out / "README.md").read_text()
    assert f"pixels: (N, 3, {side}, {side}) in [0, 1]" in card
    pixels = torch.rand(2, 3, side, side)
    scope: dict[str, torch.Tensor] = {"pixels": pixels}
    here = Path.cwd()
    os.chdir(out)
    try:
        with torch.no_grad():
            exec(card.split("```python\n")[1].split("\n```")[0], scope)
            torch.testing.assert_close(scope["features"], encoder(pixels))
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    ("name", "format", "side"),
    [
        ("resnet18", "safetensors", 32), ("resnet18", "torchvision", 32), ("resnet50", "torchvision", 32),
        ("resnet18", "timm", 32), ("timm:resnet18", "timm", 32), ("timm:vit_tiny_patch16_224", "timm", 32),
        ("resnet18", "timm", 72), ("timm:resnet18", "timm", 72),
        ("timm:tf_mobilenetv3_small_minimal_100", "timm", 32),
        ("timm:tf_mobilenetv3_small_minimal_100", "timm", 72),  # its own stem: padded as TensorFlow does
    ],
)  # fmt: skip
def test_the_cards_code_gives_the_same_features(tmp_path: Path, name: str, format: str, side: int) -> None:
    pytest.importorskip({"timm": "timm", "torchvision": "torchvision"}.get(format, "torch"))
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    check_card(run_of(name, tmp_path / "run", side), tmp_path / "run", format, side)


def test_from_pretrained_takes_the_exported_folder(tmp_path: Path) -> None:
    run = measured(tmp_path)
    export_run(run.folder, "safetensors")
    path = export_run(run.folder, "safetensors")  # over the former one
    assert path == run.folder / "export-safetensors" / "encoder.safetensors"
    pixels = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        assert intnacl.from_pretrained(path.parent)(pixels).equal(run.encoder(pixels))


def test_the_card_holds_use_figures_and_protocol(tmp_path: Path) -> None:
    run = measured(tmp_path)
    result = Overview(run).result()
    card = model_card(run.config, result, "use(me)")
    row = result["accuracy"]["digits"]
    assert f"| digits | {row['clean']:.2f} | {row['fgsm']:.2f} | {row['pgd']:.2f} |" in card
    assert "```python\nuse(me)\n```" in card
    protocol = card.split("```json\n")[1].split("\n```")[0]
    assert json.loads(protocol) == json.loads(json.dumps(result["protocol"]))
    assert "judged in float32 without TF32; those of many steps search in TF32" in card
    assert card.startswith("# small, simclr, digits\n")
    measure_attacks(run, "digits", attacks_at(["pgd"], 0.1, 64))  # by itself no second worst case
    figures, again = (
        text.split("## Protocol")[0]
        for text in (card, model_card(run.config, Overview(run).result(), "use(me)"))
    )
    assert figures == again
    assert figures.count("| worst case | 0.1 |") == 1


def test_the_card_of_a_run_that_was_not_attacked_or_not_measured(tmp_path: Path) -> None:
    run = measured(tmp_path / "measured")
    config = replace(run.config, evaluation=replace(run.config.evaluation, eps=()))
    result = Overview(replace(run, config=config)).result()
    clean = f"{result['accuracy']['digits']['clean']:.2f}"
    assert f"| digits | {clean} | – | – |" in model_card(config, result, "")
    run = trained(tmp_path)
    assert "Not measured yet" in model_card(run.config, Overview(run).result(), "")


@pytest.mark.parametrize(("name", "side"), [("resnet18", 32), ("small", 8)])
def test_onnx_gives_the_same_features_for_any_batch(tmp_path: Path, name: str, side: int) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    encoder = run_of(name, tmp_path / "run", side)
    path = export_run(tmp_path / "run", "onnx")
    session = onnxruntime.InferenceSession(str(path))
    for count in (1, 5):
        pixels = torch.rand(count, 3, side, side)
        (found,) = session.run(None, {"pixels": pixels.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(found), encoder(pixels), rtol=1e-3, atol=1e-4)


def test_features_that_differ_are_refused() -> None:
    encoder, x = torch.nn.Identity(), torch.rand(2, 4)
    check_close(x + 1e-6, encoder, x)
    for wrong in (x + 0.1, x * torch.nan):
        with pytest.raises(InputError, match="differ from torch's"):
            check_close(wrong, encoder, x)


@pytest.mark.parametrize(
    ("name", "format"), [("resnet18", "torchvision"), ("resnet18", "timm"), ("timm:resnet18", "timm")]
)
def test_an_encoder_without_batch_norms_has_no_twin(tmp_path: Path, name: str, format: str) -> None:
    pytest.importorskip("timm")
    run_of(name, tmp_path / "run", norm="none")
    with pytest.raises(InputError, match=r"without its batch norms \(encoder.norm=none\)"):
        export_run(tmp_path / "run", format, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_that_never_had_any_has(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    encoder = run_of("timm:convnext_atto", tmp_path / "run", norm="none")
    check_card(encoder, tmp_path / "run", "timm", 32)


def test_what_cannot_be_used_or_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def _session(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(run=lambda _, feed: [-torch.ones(len(feed["pixels"]), 128).numpy()])

    folder = measured(tmp_path).folder
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=_session))
    monkeypatch.setitem(sys.modules, "onnxscript", SimpleNamespace())
    monkeypatch.setattr(torch.onnx, "export", lambda model, x, path, **_: Path(path).write_bytes(b"wrong"))
    with pytest.raises(InputError, match="not usable"):
        export_run(folder, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"out/encoder\.safetensors could not be written"):
        export_run(folder, "safetensors", tmp_path / "file" / "out")


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = measured(tmp_path).folder
    with pytest.raises(InputError, match="format='onx' is unknown; did you mean 'onnx'"):
        export_run(folder, "onx")
    for format in ("torchvision", "timm"):
        with pytest.raises(InputError, match=f"encoder 'small' has no twin in {format}"):
            export_run(folder, format)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text("# Mine")
    with pytest.raises(InputError, match=r"README\.md is no model card and would be lost"):
        export_run(folder, "safetensors", tmp_path / "project")
    assert (tmp_path / "project" / "README.md").read_text() == "# Mine"
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file: give a folder"):
        export_run(folder, "safetensors", tmp_path / "file")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"pip install 'intnacl\[onnx\]'"):
        export_run(folder, "onnx")
    assert not list(folder.path.glob("export-*")), "a refused export leaves no folder"
