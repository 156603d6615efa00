"""What the commands of the command line do, apart from reading their flags."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intnacl.config import resolve
from intnacl.errors import InputError
from intnacl.stages import default_folder, pretrain
from intnacl.training.distributed import ranks
from intnacl.training.stopping import Stop

TERMINATED = 75  # sysexits' EX_TEMPFAIL: try again later


def flags(pairs: tuple[str, ...], **values: Any) -> dict[str, Any]:
    """The flags that were given, as dotted settings; `--set KEY=VALUE` pairs come last and win."""
    given = {key: value for key, value in values.items() if value is not None}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--set {pair!r} must be KEY=VALUE, such as loss.temperature=0.2.")
        given[key] = value
    return given


def pretrain_command(
    overrides: Mapping[str, Any],
    file: Path | None,
    preset: str | None,
    recipe: str | None,
    device: str,
    out: Path | None,
    max_minutes: float | None,
) -> int:
    """Pretrain; returns the exit code."""
    with ranks(device) as here, Stop(max_minutes) as stop:
        config = resolve(overrides, file=file, preset=preset, recipe=recipe, device=here.device)
        folder = out or default_folder(config)
        reason = pretrain(config, folder, here, stop)
    if here.main:
        print(f"stopped ({reason})" if reason else f"done: {folder / 'encoder.safetensors'}")
        if reason:
            print(f"go on with: {resume_command()}")
    return TERMINATED if reason == "terminate" else 0


def resume_command() -> str:
    """The command line of this process, to be run again."""
    return shlex.join(["intnacl", *sys.argv[1:]])
