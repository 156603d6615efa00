"""Encoders in the layout of the Hugging Face Hub: saved, read by others, uploaded and downloaded."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intnacl
from hub_server import served
from intnacl.errors import InputError
from intnacl.models.encoders import Encoder, EncoderConfig, build_model
from intnacl.models.hub import is_repository
from intnacl.models.resnets import SmallNet
from mistakes import must_refuse
from tiny_run import measured, write_images

FILES = {"model.safetensors", "config.json", "README.md"}
CONFIGS = {
    "small": (EncoderConfig(name="small", mean=(0.4, 0.5, 0.6)), 8),
    "resnet18": (EncoderConfig(width=8, norm="none"), 32),
    "adapted": (EncoderConfig(name="timm:resnet18"), 32),
    "timm": (EncoderConfig(name="timm:resnet18", std=(0.2, 0.3, 0.4)), 72),
    "vit": (EncoderConfig(name="timm:vit_tiny_patch16_224"), 32),
}


def made(name: str) -> tuple[Encoder, Tensor]:
    """An encoder whose running statistics have been updated, in eval mode, and pixels for it."""
    config, side = CONFIGS[name]
    if name in ("adapted", "timm", "vit"):
        pytest.importorskip("timm")
    encoder = build_model(config, image_size=side, adversarial=True, seed=0).encoder
    pixels = torch.rand(4, 3, side, side)
    encoder.train()(pixels)
    return encoder.eval(), pixels


def features(encoder: nn.Module, pixels: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = encoder(pixels)
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_encoder_loads_unchanged(tmp_path, name):
    encoder, pixels = made(name)
    encoder.save_pretrained(tmp_path / "saved")
    assert {file.name for file in (tmp_path / "saved").iterdir()} == FILES
    loaded = intnacl.from_pretrained(tmp_path / "saved")
    assert torch.equal(features(loaded, pixels), features(encoder, pixels))
    loaded.save_pretrained(tmp_path / "again")
    saved, again = ((tmp_path / folder / "model.safetensors").read_bytes() for folder in ("saved", "again"))
    assert saved == again


@pytest.mark.parametrize("name", ["timm", "vit", "adapted"])
def test_timm_loads_a_model_that_it_builds_identically(tmp_path, name):
    encoder, pixels = made(name)
    encoder.save_pretrained(tmp_path)
    if name == "adapted":
        assert "architecture" not in json.loads((tmp_path / "config.json").read_text())
        return
    import timm

    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert tuple(theirs.pretrained_cfg["std"]) == encoder.config.std
    normalised = (pixels - encoder.mean) / encoder.std
    torch.testing.assert_close(features(theirs, normalised), features(encoder, pixels))


def test_huggingface_hubs_mixin_reads_a_saved_encoder(tmp_path):
    hub = pytest.importorskip("huggingface_hub")

    class Theirs(SmallNet, hub.PyTorchModelHubMixin):
        def __init__(self, feature_dim: int) -> None:
            super().__init__()
            assert feature_dim == self.num_features

    encoder, pixels = made("small")
    encoder.save_pretrained(tmp_path)
    theirs = Theirs.from_pretrained(tmp_path, strict=True)
    normalised = (pixels - encoder.mean) / encoder.std
    torch.testing.assert_close(features(theirs, normalised), features(encoder, pixels))


def metrics(folder: Path) -> dict[str, float]:
    hub = pytest.importorskip("huggingface_hub")
    found = hub.ModelCard.load(folder / "README.md").data
    assert (found.library_name, found.pipeline_tag) == ("intnacl", "image-feature-extraction")
    return {one.metric_name: one.metric_value for one in found.eval_results or ()}


def test_the_card_has_the_runs_figures_unless_the_weights_have_changed(tmp_path):
    run = measured(tmp_path)
    clean = round(run.result["accuracy"]["digits"]["clean"], 2)
    for number, encoder in enumerate((run.encoder, intnacl.from_pretrained(run.folder.path))):
        out = tmp_path / str(number)
        encoder.save_pretrained(out)
        assert {file.name for file in out.iterdir()} == {*FILES, "result.json"}
        assert metrics(out)["accuracy, %"] == clean
        assert json.loads((out / "config.json").read_text())["run"]["train"]["epochs"] == 2
    intnacl.from_pretrained(out).save_pretrained(tmp_path / "again")  # of what was saved
    assert metrics(tmp_path / "again") == metrics(out)
    with torch.no_grad():
        next(encoder.parameters()).add_(1)
    encoder.save_pretrained(out)  # over the former one
    assert metrics(out) == {}
    assert {file.name for file in out.iterdir()} == FILES
    shutil.rmtree(run.folder.path)
    run.encoder.save_pretrained(tmp_path / "later")
    assert metrics(tmp_path / "later") == {}


def test_the_example_on_the_card_runs_in_its_folder(tmp_path):
    encoder = intnacl.from_pretrained("digits-intnacl")
    encoder.save_pretrained(tmp_path)
    scope: dict[str, Any] = {}
    with contextlib.chdir(tmp_path):
        exec((tmp_path / "README.md").read_text().split("```python\n")[1].split("\n```")[0], scope)
    assert torch.equal(scope["features"], features(encoder, scope["pixels"]))
    assert 'license: "apache-2.0"' in (tmp_path / "README.md").read_text()


def test_folders_of_the_author_are_not_published(tmp_path):
    run = measured(tmp_path, root=str(tmp_path / "private"))
    run.measure(run.config.probe, dataset=write_images(tmp_path / "private" / "cats"))
    intnacl.open_run(run.folder).encoder.save_pretrained(tmp_path / "out")
    for name in ("README.md", "config.json", "result.json"):
        assert "private" not in (tmp_path / "out" / name).read_text()
    assert "folder:cats" in (tmp_path / "out" / "result.json").read_text()


def test_files_from_elsewhere_are_not_overwritten(tmp_path):
    encoder, _ = made("small")
    run = measured(tmp_path).folder
    must_refuse(encoder.save_pretrained, run.path, "has another kind of config.json, such as a run's")
    assert not (run.path / "model.safetensors").exists()
    out = tmp_path / "out"
    out.mkdir()
    (out / "README.md").write_text("# Mine")
    encoder.save_pretrained(out)
    assert (out / "README.md").read_text() == "# Mine"


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PUSH = """import intnacl
encoder = intnacl.from_pretrained("digits-intnacl")
print(encoder.push_to_hub("team/digits", private=True, token="secret"))"""
PULL = """import intnacl, torch
pixels = torch.rand(2, 3, 8, 8)
loaded, wanted = (intnacl.from_pretrained(name)(pixels) for name in ("team/digits", "digits-intnacl"))
assert torch.equal(loaded, wanted)
try:
    intnacl.from_pretrained("team/nothing")
except intnacl.errors.InputError as error:
    print(error)"""


def test_an_uploaded_encoder_can_be_downloaded_and_then_used_offline(tmp_path):
    """With huggingface_hub's own client, and a server here that speaks as the Hub does."""
    pytest.importorskip("huggingface_hub")
    home = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1"}
    with served() as hub:
        address = python(PUSH, HF_ENDPOINT=hub.url, **home)
        assert address == f"{hub.url}/team/digits/commit/{hub.commit}\n"
        assert hub.files.keys() == {*FILES, "result.json"}
        assert hub.messages == ["Upload an encoder trained by intnacl"]
        assert (hub.created[0]["name"], hub.created[0]["organization"]) == ("digits", "team")
        assert hub.created[0].get("private") or hub.created[0].get("visibility") == "private"
        assert b'from_pretrained("team/digits")' in hub.files["README.md"]
        refused = python(PULL, HF_ENDPOINT=hub.url, **home)
        assert refused.startswith("team/nothing does not exist here: give a finished run's folder.")
        assert "RepositoryNotFoundError" in refused
    python(PULL, HF_HUB_OFFLINE="1", **home)


def test_repository_names_are_distinguished_from_paths(tmp_path, monkeypatch):
    assert is_repository("team/digits-1.0")
    assert not any(map(is_repository, ("team", "a/b/c", "./digits", "/team/digits", "team/", "~/digits", "")))
    with contextlib.chdir(tmp_path):
        Path("runs").mkdir()
        assert not is_repository("runs/mine")
        must_refuse(intnacl.from_pretrained, "runs/mine", "runs/mine does not exist: give a finished run's")
    encoder, _ = made("small")
    must_refuse(encoder.push_to_hub, "digits", "repo='digits' is not the name of a repository")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert type(intnacl.from_pretrained("digits-intnacl")) is Encoder
    for call in (lambda: intnacl.from_pretrained("team/digits"), lambda: encoder.push_to_hub("team/digits")):
        with pytest.raises(InputError, match=r"needs huggingface_hub: pip install '.*\[hub\]'"):
            call()
