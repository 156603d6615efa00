"""The linear layers on an encoder, and the protocol of each: how layer and encoder were trained.

slf: the layer alone, on a frozen encoder and clean images, as in every run's own probe; alf: the layer alone,
on a frozen encoder and attacked images; aff: layer and encoder together, by adversarial fine-tuning; sff:
both together, by fine-tuning on clean images.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import nn

from intnacl.errors import InputError
from intnacl.evaluation.probe import as_linear
from intnacl.files import parse_json, read_file, write_file
from intnacl.models.weights import parse_tensors

ProbeProtocol = Literal["slf", "alf", "aff", "sff"]
PROTOCOLS: tuple[ProbeProtocol, ...] = ("slf", "alf", "aff", "sff")
FINETUNED = ("aff", "sff")
PROTOCOL_NAMES = {"slf": "SLF", "alf": "ALF", "aff": "AFF", "sff": "SFF", "hcl": "HCL's"}


def save_head(linear: nn.Linear, path: Path, settings: Mapping[str, Any] | None = None) -> str:
    """Write a layer with the settings that it was trained with; return the file's SHA-256."""
    from safetensors.torch import save

    state = {name: value.detach().cpu().contiguous() for name, value in linear.state_dict().items()}
    content = save(state, {"intnacl": json.dumps(settings or {}, sort_keys=True)})
    write_file(path, content)
    return hashlib.sha256(content).hexdigest()


def head_sha256(path: Path) -> str:
    """Return the SHA-256 of a layer's file."""
    try:
        return hashlib.sha256(read_file(path)).hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}. Restore it from a copy.") from error


def load_head(path: Path, noted: str | None) -> nn.Linear:
    """Read a layer; raise if its SHA-256 is not the one noted when it was trained."""
    content = read_file(path)
    if noted not in (None, hashlib.sha256(content).hexdigest()):
        raise InputError(
            f"{path} is damaged: its SHA-256 is not the one noted when the probe was fitted. Restore it from "
            "a copy, or delete it to fit the probe again."
        )
    _, state = parse_tensors(content)
    return as_linear(state["weight"], state["bias"]).requires_grad_(False)


def is_stored(path: Path, settings: Mapping[str, Any]) -> bool:
    """Return True if an intact layer with these settings is stored; the settings are JSON-compatible."""
    from safetensors import SafetensorError

    try:
        metadata, tensors = parse_tensors(read_file(path))
        layer = tensors["weight"].ndim, tensors["bias"].shape
        same = bool(parse_json(metadata["intnacl"]) == settings)
        return same and layer == (2, tensors["weight"].shape[:1])
    except (OSError, SafetensorError, KeyError, ValueError):
        return False
