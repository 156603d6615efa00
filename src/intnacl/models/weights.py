"""Encoders on disk: one safetensors file with the weights and what is needed to build the encoder again."""

import glob
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from intnacl.errors import InputError
from intnacl.files import as_path, check_file, fits, parse_json, read_file, write_file
from intnacl.models.batchnorm import remove_norms
from intnacl.models.encoders import ContrastiveModel, Encoder, EncoderConfig, build_head, build_model
from intnacl.models.shipped import is_shipped, located, pretrained

PROJECTION = "projection.safetensors"  # in the folder of a contrastive run
ENCODER, BEST_ENCODER = "encoder.safetensors", "encoder-best.safetensors"  # in a run's folder
MODEL = "model.safetensors"  # the same file by its name on the Hugging Face Hub
KEY = "intnacl"


class EncoderHeader(TypedDict):
    """The header of an encoder's file: everything that builds the encoder again, except for its weights."""

    encoder: dict[str, Any]
    """The fields of `EncoderConfig`; a false `pretrained` and a default `width` or `stem` are left out."""
    image_size: int
    data: NotRequired[str | None]
    """The checksum of the images it was trained on; older files have none."""


def save_encoder(
    encoder: Encoder, config: EncoderConfig, image_size: int, path: Path, *, data: str | None = None
) -> None:
    """Write the encoder's clean part, under torchvision's names where it is a ResNet.

    `data` is the checksum of the images it was trained on. The file's own checksum is written beside it, in
    the format that `sha256sum --check` reads.
    """
    content = encoder_file(clean_state(encoder), encoder_header(config, image_size, data))
    write_checksum(path, content)
    write_file(path, content)


def encoder_header(config: EncoderConfig, image_size: int, data: str | None = None) -> EncoderHeader:
    """Return the header of an encoder's file."""
    settings = asdict(config)
    if pretrained := bool(settings.pop("pretrained")):  # the file has the weights, wherever they came from
        settings["pretrained"] = pretrained
    for name in ("width", "stem"):  # older files lack these; equal encoders keep equal bytes
        if settings[name] == getattr(EncoderConfig, name):
            del settings[name]
    return {"encoder": settings, "image_size": image_size, "data": data}


def encoder_file(state: dict[str, Tensor], header: EncoderHeader) -> bytes:
    """Return the content of an encoder's file: equal encoders give equal bytes.

    The header is one entry, since safetensors does not keep the order of several, and has no timestamp.
    """
    from safetensors.torch import save

    return save(state, {KEY: json.dumps(header, sort_keys=True)})


def save_projection(model: ContrastiveModel, path: Path) -> None:
    """Write a model's projection head, for students that compare projections with this teacher's."""
    from safetensors.torch import save

    header = {"head": model.config.head, "features": model.encoder.feature_dim}
    state = {name: value for name, value in model.head.state_dict().items() if "adversarial." not in name}
    content = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    write_file(path, save(content, {KEY: json.dumps(header, sort_keys=True)}))


def load_projection(path: str | Path) -> nn.Module:
    """Load the projection head that lies beside an encoder's file or in its run's folder, in eval mode."""
    path = as_path("path", path)
    file = (path if path.is_dir() else path.parent) / PROJECTION
    if not file.exists():
        raise InputError(
            f"{file} does not exist: the teacher has no projection head. Contrastive runs write it when they "
            "end; those of earlier versions did not. Without it, set distill.projection_weight=0."
        )
    with _reading(file):
        metadata, state = parse_tensors(read_file(file))
        header = parse_json(metadata[KEY])
        head = build_head(header["features"], header["head"])
        if not any("running_mean" in name for name in state):
            remove_norms(head)
        head.load_state_dict(state)
    return head.requires_grad_(False).eval()


def write_checksum(path: Path, content: bytes) -> None:
    """Write the SHA-256 of a file's content beside it, as `sha256sum` does."""
    write_file(checksum_file(path), os.fsencode(f"{hashlib.sha256(content).hexdigest()}  {path.name}\n"))


def checksum_file(path: Path) -> Path:
    """Return the path of the checksum of an encoder's file."""
    return path.with_suffix(".sha256")


def clean_state(encoder: Encoder) -> dict[str, Tensor]:
    """Return the backbone's weights and statistics without those of the adversarial batch norm."""
    state = encoder.backbone.state_dict()
    return {k: v.detach().cpu().contiguous() for k, v in state.items() if ".adversarial." not in f".{k}"}


def same_weights(one: Encoder, other: Encoder) -> bool:
    """True if two encoders have the same weights, statistics and normalisation of pixels."""
    a, b = clean_state(one), clean_state(other)
    buffers = torch.equal(one.mean.cpu(), other.mean.cpu()) and torch.equal(one.std.cpu(), other.std.cpu())
    return buffers and a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


class SavedEncoder(NamedTuple):
    """The content of an encoder's file."""

    encoder: Encoder
    """In eval mode: pixels in [0, 1] -> features."""
    header: EncoderHeader
    sha256: str
    """Checksum of the file."""


def load_encoder(path: str | Path) -> SavedEncoder:
    """Load the encoder of a shipped name, a run folder or a file, with its header; the file is read once.

    Raises if the file does not match the checksum that was written beside it.
    """
    with _reading(path) as file:
        content = read_encoder(file)
        sha256, noted = hashlib.sha256(content).hexdigest(), checksum_file(file)
        if noted.is_file() and sha256 not in noted.read_text(errors="replace").split():
            remedy = (
                "Restore it from a copy, or delete it and repeat the run's command, which resumes from "
                "the last checkpoint."
            )
            if is_shipped(file.parent):
                remedy = "Install intnacl again, or restore it from a copy."
            raise InputError(f"{file} is damaged: its SHA-256 is not the one in {noted.name}. {remedy}")
        header, state = _parse(content)
        options = header["encoder"]
        config = EncoderConfig(**options | {name: tuple(options[name]) for name in ("mean", "std")})
        side = header["image_size"]
        encoder = build_model(config, image_size=side, adversarial=False, seed=0, load=False).encoder
        encoder.backbone.load_state_dict(state)
    encoder.trained_on = header.get("data")
    return SavedEncoder(encoder.eval(), header, sha256)


def has_encoder(file: Path) -> bool:
    """True if an encoder's file exists, whole or in pieces."""
    return os.path.lexists(file) or bool(pieces(file))


def read_encoder(file: Path) -> bytes:
    """Return the content of an encoder's file, joined from its pieces if it is stored in pieces."""
    return read_file(file) if os.path.lexists(file) else b"".join(map(read_file, pieces(file)))


def pieces(file: Path) -> list[Path]:
    """Return the pieces of a file too large to be kept whole: FILE.part01, FILE.part02 and so on."""
    return sorted(file.parent.glob(f"{glob.escape(file.name)}.part[0-9][0-9]"))


def read_header(path: str | Path) -> EncoderHeader:
    """Read the header of the encoder of a run folder or a file."""
    with _reading(path) as file:
        return _parse(read_encoder(file))[0]


def parse_tensors(content: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the metadata and the tensors in the bytes of a safetensors file.

    Raises ValueError or SafetensorError. The functions of safetensors that open files block on pipes, and
    reject paths that are not UTF-8.
    """
    from safetensors.torch import load

    tensors = load(content)  # validates all of the header
    header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return header.get("__metadata__", {}), tensors


def _parse(content: bytes) -> tuple[EncoderHeader, dict[str, Tensor]]:
    metadata, tensors = parse_tensors(content)
    header: EncoderHeader = parse_json(metadata[KEY])
    if not fits(header, EncoderHeader) or not fits(header["encoder"], EncoderConfig):
        raise ValueError("its header is invalid")
    return header, tensors


@contextmanager
def _reading(path: str | Path) -> Iterator[Path]:
    """Yield the encoder's file of a folder, or the file itself; any error inside the block names it."""
    from safetensors import SafetensorError

    file = path = located(as_path("path", path))
    if path.is_dir():
        file = path / (ENCODER if has_encoder(path / ENCODER) or not has_encoder(path / MODEL) else MODEL)
    if not has_encoder(file):
        raise InputError(
            f"{file} does not exist: give a finished run's folder, an {ENCODER}, or one of the encoders that "
            f"come with the package: {', '.join(pretrained())}."
        )
    if os.path.lexists(file):
        check_file(file)
    try:
        yield file
    except InputError:  # such as a missing timm
        raise
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"{file} is not an encoder of intnacl, or damaged ({type(error).__name__}: {reason}). If it is a "
            "run's, delete it and repeat the run's command, which resumes from the last checkpoint."
        ) from error
