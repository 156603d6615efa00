"""A run's encoder for other programs, with a model card that holds its figures and their protocol."""

import io
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from intnacl.attacks.named import ATTACK_NAMES
from intnacl.console import two_decimals
from intnacl.errors import InputError, check_choice, missing_extra
from intnacl.files import write_file
from intnacl.models.encoders import SMALL, build_model, timm_options
from intnacl.models.resnets import RESNETS
from intnacl.models.weights import ENCODER, clean_state
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import loss_name
from intnacl.runs.opened import Run, open_run
from intnacl.runs.page import accuracy_rows
from intnacl.runs.result import Overview, Result, best_rows, images_measured_on, radius_text

Exported = tuple[str, bytes, str]
"""The name of the encoder's file, its content, and code that uses it."""
CARD_MARK = "An encoder trained by intnacl"  # a README.md with these words is a card of ours
TOLERANCE = 1e-4  # largest difference of ONNX's features from torch's, relative to the largest feature


def export_run(path: Path, format: str, out: Path | None = None) -> Path:
    """Write the encoder and its card to a folder, and return the encoder's file."""
    check_choice("format", format, FORMATS)
    run = open_run(path, device="cpu")
    out = out or path / f"export-{format}"
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file: give a folder.")
    readme = out / "README.md"
    if readme.exists() and CARD_MARK not in readme.read_text(encoding="utf-8", errors="replace"):
        raise InputError(f"{readme} is no model card and would be lost: give --out a folder of its own.")
    name, content, usage = FORMATS[format](run)
    card = model_card(run.config, Overview(run).result(), usage)
    write_file(out / name, content)
    write_file(readme, card.encode())
    return out / name


def model_card(config: RunConfig, result: Result, usage: str) -> str:
    """Return the card in Markdown: what the encoder is, how to use it, its figures and their protocol."""
    train = config.train
    figures = "Not measured yet: `intnacl probe RUN`, `intnacl attack RUN`, then export again."
    if result["accuracy"]:
        heads = [f"{name}, {radius_text(result)}".removesuffix(", ") for name in ("FGSM", "PGD")]
        figures = _table(["data set (accuracy, %)", "clean", *heads], accuracy_rows(result))
    attacks = []
    for dataset in dict.fromkeys(row["dataset"] for row in result["attacks"]):
        for row in best_rows(result, dataset):
            attack, accuracies = ATTACK_NAMES.get(row["name"], row["name"]), (row["accuracy"], row["clean"])
            which = [dataset, attack, f"{row['eps']:.4g}", str(row["images"])]
            attacks.append([*which, *map(two_decimals, accuracies)])
    attack_heads = ["data set", "attack", "eps", "images", "accuracy, %", "clean, same images"]
    parts = [
        f"# {config.encoder.name}, {loss_name(config)}, {config.dataset}",
        f"{CARD_MARK} for {train.epochs} epochs on {config.dataset} (batch {train.batch_size}, "
        f"{train.optimizer}, learning rate {train.lr:g}, seed {config.seed}, recipe {config.recipe}).",
        f"## Use\n\n```python\n{usage}\n```",
        f"## Figures\n\n{figures}",
        *([_table(attack_heads, attacks)] if attacks else []),
        "## Protocol\n\nLinear probe: frozen encoder in eval mode, no augmentation, last epoch on all "
        f"{images_measured_on(result)}. Attacks: ℓ∞ ball, pixels in [0, 1], judged in float32 without TF32; "
        "those of many steps search in TF32 on a GPU.\n\n"
        f"```json\n{json.dumps(result['protocol'], indent=1, ensure_ascii=False)}\n```",
        f"## Configuration\n\n```json\n{json.dumps(result['config'], indent=1, ensure_ascii=False)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a table in Markdown; a | inside a cell becomes a /."""
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _safetensors(run: Run) -> Exported:
    side = run.image_size
    usage = (
        f'import intnacl\n\nencoder = intnacl.from_pretrained("{ENCODER}")\n'
        f"features = encoder(pixels)  # pixels: (N, 3, {side}, {side}) in [0, 1]"
    )
    return ENCODER, run.folder.encoder.read_bytes(), usage


def _torchvision(run: Run) -> Exported:
    """A state dict under torchvision's names; the usage changes torchvision's model so that it takes it."""
    name = run.config.encoder.name
    if name not in RESNETS:
        raise InputError(f"encoder {name!r} has no twin in torchvision: take --format safetensors or onnx.")
    content, file = io.BytesIO(), "torchvision.pth"
    torch.save(_state(run), content)
    state = f'torch.load("{file}", weights_only=True)'
    return file, content.getvalue(), _usage("torchvision", f"torchvision.models.{name}()", state, run)


def _timm(run: Run) -> Exported:
    from safetensors.torch import save

    name = run.config.encoder.name
    if name not in RESNETS and not name.startswith("timm:"):
        raise InputError(f"encoder {name!r} has no twin in timm: take --format safetensors or onnx.")
    content, file, options = save(_state(run)), "timm.safetensors", ""
    if name.startswith("timm:"):
        name = name.removeprefix("timm:")
        options = "".join(f", {k}={v}" for k, v in timm_options(name, run.image_size).items())
    made = f'timm.create_model("{name}", num_classes=0{options})'
    return file, content, _usage("timm", made, f'load_file("{file}")', run)


def _state(run: Run) -> dict[str, Tensor]:
    """Return the weights for the other package's model, which has batch norms wherever one is built."""
    config, state = run.config.encoder, clean_state(run.encoder)
    usual = build_model(
        replace(config, norm="joint"), image_size=run.image_size, adversarial=False, seed=0
    ).encoder
    if clean_state(usual).keys() != state.keys():
        raise InputError(
            f"encoder {config.name!r} was trained without its batch norms (encoder.norm={config.norm}): its "
            "twin elsewhere would have them. Take --format safetensors or onnx."
        )
    return state


def _usage(package: str, made: str, state: str, run: Run) -> str:
    """Return code that makes the other package's model, gives it the stem of ours, and loads the weights."""
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
    if ours or isinstance(getattr(backbone, "maxpool", None), nn.Identity):
        lines += ["model.maxpool = torch.nn.Identity()"]
    config, side = run.config.encoder, run.image_size
    lines += [
        f"model.load_state_dict({state})",
        "model.eval()",
        "",
        f"mean = torch.tensor({list(config.mean)}).view(3, 1, 1)",
        f"std = torch.tensor({list(config.std)}).view(3, 1, 1)",
        f"features = model((pixels - mean) / std)  # pixels: (N, 3, {side}, {side}) in [0, 1]",
    ]
    return "\n".join(lines)


def _onnx(run: Run) -> Exported:
    """Pixels -> features for any batch size, checked against torch on random pixels."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    except ImportError:
        raise missing_extra("onnx, onnxscript and onnxruntime", "onnx", "--format onnx") from None
    side, generator = run.image_size, torch.Generator().manual_seed(0)
    x = torch.rand(4, 3, side, side, generator=generator)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations, nothing a user could act on
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
    usage = (
        'import onnxruntime\n\nsession = onnxruntime.InferenceSession("encoder.onnx")\n'
        f'(features,) = session.run(None, {{"pixels": pixels}})  # float32 (N, 3, {side}, {side}) in [0, 1]'
    )
    return path.name, content, usage


def check_close(found: Tensor, encoder: nn.Module, x: Tensor) -> None:
    """Raise if features of another runtime differ from torch's."""
    with torch.no_grad():
        wanted = encoder(x)
    gap = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12))
    if not gap <= TOLERANCE:
        raise InputError(f"the exported encoder's features differ from torch's by {gap:.1e}: not usable.")


FORMATS: dict[str, Callable[[Run], Exported]] = {
    "safetensors": _safetensors,
    "torchvision": _torchvision,
    "timm": _timm,
    "onnx": _onnx,
}
