"""Exported encoders give the run's features in other programs, by the very code of their model card."""

import os
from pathlib import Path

import pytest
import torch

import intnacl
from intnacl.errors import InputError
from intnacl.models.encoders import build_model
from intnacl.models.weights import save_encoder
from intnacl.runs.export import check_close, export_run
from intnacl.runs.folder import RunFolder
from intnacl.runs.resolve import resolve
from tiny_run import measured


def run_of(name: str, folder: Path, side: int = 32, **changes: str) -> torch.nn.Module:
    """A run folder with an encoder whose batch norms have seen something; the encoder."""
    settings = {"dataset": "cifar10", "encoder.name": name, "encoder.std": (0.2, 0.25, 0.3)}
    config = resolve(settings | {f"encoder.{key}": value for key, value in changes.items()})
    RunFolder(folder).begin(config)
    encoder = build_model(config.encoder, image_size=side, adversarial=False, seed=0).encoder
    encoder.train()(torch.rand(8, 3, side, side))
    save_encoder(encoder, config.encoder, side, folder / "encoder.safetensors")
    return encoder.eval()


def features_by_the_card(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    """Run the card's code in the exported folder."""
    code = (folder / "README.md").read_text().split("```python\n")[1].split("\n```")[0]
    scope: dict[str, object] = {"pixels": pixels}
    here = Path.cwd()
    os.chdir(folder)
    try:
        with torch.no_grad():
            exec(code, scope)
    finally:
        os.chdir(here)
    found = scope["features"]
    assert isinstance(found, torch.Tensor)
    return found


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
    encoder = run_of(name, tmp_path / "run", side)
    path = export_run(tmp_path / "run", format, tmp_path / "out")
    assert path.parent == tmp_path / "out"
    assert f"pixels: (N, 3, {side}, {side}) in [0, 1]" in (tmp_path / "out" / "README.md").read_text()
    pixels = torch.rand(2, 3, side, side)
    with torch.no_grad():
        torch.testing.assert_close(features_by_the_card(tmp_path / "out", pixels), encoder(pixels))


def test_from_pretrained_takes_the_exported_folder(tmp_path: Path) -> None:
    subject = measured(tmp_path)
    export_run(subject.folder, "safetensors")
    path = export_run(subject.folder, "safetensors")  # over the former one
    assert path == subject.folder / "export-safetensors" / "encoder.safetensors"
    pixels = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        assert intnacl.from_pretrained(path.parent)(pixels).equal(subject.encoder(pixels))
    assert "| digits |" in (path.parent / "README.md").read_text()


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
    export_run(tmp_path / "run", "timm", tmp_path / "out")
    pixels = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(features_by_the_card(tmp_path / "out", pixels), encoder(pixels))


def test_what_cannot_be_used_or_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys
    from types import SimpleNamespace

    from intnacl.runs import export

    def _session(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(run=lambda _, feed: [-torch.ones(len(feed["pixels"]), 128).numpy()])

    folder = measured(tmp_path).folder
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=_session))
    monkeypatch.setitem(sys.modules, "onnxscript", SimpleNamespace())
    monkeypatch.setattr(export, "_to_onnx", lambda encoder, x, path: path.write_bytes(b"wrong"))
    with pytest.raises(InputError, match="not usable"):
        export_run(folder, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"out/encoder\.safetensors could not be written"):
        export_run(folder, "safetensors", tmp_path / "file" / "out")


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

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
