"""Encoders on disk: one safetensors file with the weights and what is needed to build the encoder again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from intnacl.errors import InputError
from intnacl.files import write_file
from intnacl.models.encoders import Encoder, EncoderConfig, build_model

ENCODER = "encoder.safetensors"  # in a run's folder
KEY = "intnacl"


def save_encoder(
    encoder: Encoder, config: EncoderConfig, image_size: int, path: Path, *, data: str | None = None
) -> None:
    """Write the encoder's clean part, under torchvision's names where it is a ResNet.

    `data` is the checksum of the images it was trained on. Equal encoders of equal images give equal bytes:
    the header has one entry, and no time in it.
    """
    from safetensors.torch import save

    header = {"encoder": asdict(config), "image_size": image_size, "data": data}
    write_file(path, save(clean_state(encoder), {KEY: json.dumps(header, sort_keys=True)}))


def clean_state(encoder: Encoder) -> dict[str, Tensor]:
    """The backbone's weights and statistics without those of the adversarial batch norm."""
    state = encoder.backbone.state_dict()
    return {k: v.detach().cpu().contiguous() for k, v in state.items() if ".adversarial." not in f".{k}"}


def from_pretrained(path: str | Path) -> Encoder:
    """The encoder of a run folder or an `encoder.safetensors`, in eval mode: pixels in [0, 1] -> features."""
    with _reading(path) as file:
        header, state = _read(file)
        options: dict[str, Any] = header["encoder"]
        config = EncoderConfig(**options | {name: tuple(options[name]) for name in ("mean", "std")})
        encoder = build_model(config, image_size=header["image_size"], adversarial=False, seed=0).encoder
        encoder.backbone.load_state_dict(state)
    return encoder.eval()


def read_header(path: str | Path) -> dict[str, Any]:
    """What an `encoder.safetensors` tells of itself: `encoder` (its options), `image_size` and `data` (the
    checksum of the images it was trained on; older files have none)."""
    with _reading(path) as file:
        return _read(file, tensors=False)[0]


def _read(file: Path, *, tensors: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as handle:
        header = dict[str, Any](json.loads((handle.metadata() or {})[KEY]))
        names = handle.keys() if tensors else ()
        return header, {name: handle.get_tensor(name) for name in names}


@contextmanager
def _reading(path: str | Path) -> Iterator[Path]:
    """The file of a run folder's encoder, or the file itself; an error names it, whatever is wrong inside."""
    from safetensors import SafetensorError

    path = Path(path)
    file = path / ENCODER if path.is_dir() else path
    if not file.exists():
        raise InputError(f"{file} does not exist: give a finished run's folder or an {ENCODER}.")
    try:
        yield file
    except InputError:  # such as a missing timm
        raise
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"{file} is no encoder of intnacl, or damaged ({type(error).__name__}: {reason}). If it is a "
            "run's, delete it and repeat the run's command, which goes on from the last checkpoint."
        ) from error
