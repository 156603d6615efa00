"""A run's encoder for other programs, beside its model card, configuration and figures."""

import io
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from intnacl.errors import InputError, check_choice, missing_extra
from intnacl.files import read_file, write_file, write_json, write_text
from intnacl.models.encoders import SMALL, Encoder, build_model, timm_options
from intnacl.models.hub import CARD_MARK, computing, usage
from intnacl.models.resnets import RESNETS, USUAL_WIDTH
from intnacl.models.shipped import is_shipped
from intnacl.models.weights import ENCODER, clean_state, read_encoder
from intnacl.runs.card import model_card, without_folders
from intnacl.runs.config import from_dict
from intnacl.runs.folder import RunFolder
from intnacl.runs.opened import Run, open_run
from intnacl.runs.overview import Overview
from intnacl.runs.result import Result

Exported = tuple[str, bytes, str]
"""The name of the encoder's file, its content, and code that uses it."""
TOLERANCE = (
    1e-4  # largest allowed difference of ONNX's from torch's features, relative to the largest feature
)


def export_run(path: Path, format: str, out: Path | None = None) -> Path:
    """Write the encoder and its card to a folder, and return the encoder's file."""
    check_choice("format", format, FORMATS)
    run = open_run(path, device="cpu")
    if out is None:
        run.folder.check_writable("give --out FOLDER.")
        out = path / f"export-{format}"
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file: give a folder.")
    readme = out / "README.md"
    if os.path.lexists(readme) and not _is_card(readme):
        raise InputError(f"{readme} is not a model card and would be lost: give --out a new folder.")
    elsewhere = out.resolve() != Path(path).resolve()
    if elsewhere and (out / "config.json").exists() and not readme.exists():
        raise InputError(f"{out} is the folder of another run: give --out a new folder.")
    name, content, usage = FORMATS[format](run)
    library = {"torchvision": "pytorch", "safetensors": "intnacl"}.get(format, format)
    result = Overview(run).result()
    card = model_card(run.config, result, usage, library=library)
    write_file(out / name, content)
    if elsewhere:  # in the run's own folder, config and result stay, and an unfinished run gets no result
        exported = RunFolder(out)
        exported.write_config(run.config)
        write_json(exported.result, result)
    write_text(readme, card)
    return out / name


def saved_card(folder: RunFolder, encoder: Encoder, place: str) -> tuple[str, Result] | None:
    """Return the card and the figures of an encoder that is saved for the Hub; None if it has no figures.

    They come from a run's folder, or from the result.json of a saved or downloaded encoder. The names of the
    author's folders are removed.
    """
    try:
        result = without_folders(Overview(open_run(folder, device="cpu")).result())
    except InputError:
        found = folder.read_result()
        if found is None:
            return None
        result = found
    license = "apache-2.0" if is_shipped(folder.path) else "unknown"
    where = "In the folder of this file" if place == "." else "With intnacl installed"
    try:
        config = from_dict({**result["config"]})
        return model_card(config, result, usage(place, encoder), license=license, where=where), result
    except (InputError, KeyError, TypeError):  # a result.json that another version wrote
        return None


def _is_card(readme: Path) -> bool:
    try:
        return CARD_MARK.encode() in read_file(readme)
    except OSError:  # a folder, a pipe, a link to nowhere
        return False


def _safetensors(run: Run) -> Exported:
    return ENCODER, read_encoder(run.folder.encoder), usage(ENCODER, run.encoder)


def _torchvision(run: Run) -> Exported:
    """Return a state dict with torchvision's names, and code that adapts torchvision's model to it."""
    name = run.config.encoder.name
    if name not in RESNETS:
        raise InputError(
            f"encoder {name!r} has no counterpart in torchvision: use --format safetensors or onnx."
        )
    content, file = io.BytesIO(), "torchvision.pth"
    torch.save(_state(run), content)
    state = f'torch.load("{file}", weights_only=True)'
    return file, content.getvalue(), _usage("torchvision", f"torchvision.models.{name}()", state, run)


def _timm(run: Run) -> Exported:
    from safetensors.torch import save

    name = run.config.encoder.name
    if name not in RESNETS and not name.startswith("timm:"):
        raise InputError(f"encoder {name!r} has no counterpart in timm: use --format safetensors or onnx.")
    content, file, options = save(_state(run)), "timm.safetensors", ""
    if name.startswith("timm:"):
        name = name.removeprefix("timm:")
        options = "".join(f", {k}={v}" for k, v in timm_options(run.config.encoder, run.image_size).items())
    made = f'timm.create_model("{name}", num_classes=0{options})'
    return file, content, _usage("timm", made, f'load_file("{file}")', run)


def _state(run: Run) -> dict[str, Tensor]:
    """Return the weights for the other package's model; raise if its layers would be others."""
    config, state = run.config.encoder, clean_state(run.encoder)
    if config.width != USUAL_WIDTH:
        raise InputError(
            f"encoder.width={config.width}: in other packages, {config.name!r} has {USUAL_WIDTH} channels. "
            "Use --format safetensors or onnx."
        )
    usual = build_model(
        replace(config, norm="joint"), image_size=run.image_size, adversarial=False, seed=0, load=False
    ).encoder
    if clean_state(usual).keys() != state.keys():
        raise InputError(
            f"encoder {config.name!r} was trained without its batch norms (encoder.norm={config.norm}), "
            "which it has in other packages. Use --format safetensors or onnx."
        )
    return state


def _usage(package: str, made: str, state: str, run: Run) -> str:
    """Return code that creates the other package's model, adapts its stem to ours, and loads the weights."""
    imports = {"timm": "import timm\nimport torch\nfrom safetensors.torch import load_file"}
    lines = [imports.get(package, "import torch\nimport torchvision"), "", f"model = {made}"]
    backbone = run.encoder.backbone
    ours = run.config.encoder.name in RESNETS
    if ours or (run.image_size <= SMALL and "img_size" not in made):
        name, conv = next((n, m) for n, m in backbone.named_modules() if isinstance(m, nn.Conv2d))
        shape = (conv.in_channels, conv.out_channels, conv.kernel_size[0], conv.stride[0], conv.padding[0])
        bias = conv.bias is not None
        arguments = ", ".join(map(str, shape))
        lines += [f'model.set_submodule("{name}", torch.nn.Conv2d({arguments}, bias={bias}))']
    if package == "torchvision":
        lines += ["model.fc = torch.nn.Identity()"]
    if isinstance(getattr(backbone, "maxpool", None), nn.Identity):
        lines += ["model.maxpool = torch.nn.Identity()"]
    config, side = run.config.encoder, run.image_size
    lines += [
        f"model.load_state_dict({state})",
        "model.eval()",
        "",
        f"mean = torch.tensor({list(config.mean)}).view(3, 1, 1)",
        f"std = torch.tensor({list(config.std)}).view(3, 1, 1)",
        *computing("model((pixels - mean) / std)", side, run.encoder.feature_dim),
    ]
    return "\n".join(lines)


def _onnx(run: Run) -> Exported:
    """Export pixels -> features for any batch size, and check it against torch on random pixels."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ImportError:
        raise missing_extra("onnx, onnxscript and onnxruntime", "onnx", "--format onnx") from None
    side, generator = run.image_size, torch.Generator().manual_seed(0)
    x = torch.rand(4, 3, side, side, generator=generator)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations, on which a user cannot act
        path = Path(folder) / "encoder.onnx"
        torch.onnx.export(
            nn.Sequential(run.encoder).eval(),
            (x,),
            str(path),
            input_names=["pixels"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        content = path.read_bytes()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for batch in (x, x[:1], x[:3]):
        found = torch.from_numpy(session.run(None, {"pixels": batch.numpy()})[0])
        check_close(found, run.encoder, batch)
    usage = "\n".join(
        [
            "import numpy",
            "import onnxruntime",
            "",
            'session = onnxruntime.InferenceSession("encoder.onnx")',
            f"pixels = numpy.random.rand(2, 3, {side}, {side})"
            '.astype("float32")  # your images: RGB in [0, 1]',
            f'(features,) = session.run(None, {{"pixels": pixels}})  # (2, {run.encoder.feature_dim})',
        ]
    )
    return path.name, content, usage


def check_close(found: Tensor, encoder: nn.Module, x: Tensor) -> None:
    """Raise if another runtime's features differ from torch's."""
    with torch.no_grad():
        wanted = encoder(x)
    gap = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12))
    if not gap <= TOLERANCE:
        raise InputError(
            f"the exported encoder is not usable: its features differ from torch's by {gap:.1e}."
        )


FORMATS: dict[str, Callable[[Run], Exported]] = {
    "safetensors": _safetensors,
    "torchvision": _torchvision,
    "timm": _timm,
    "onnx": _onnx,
}
