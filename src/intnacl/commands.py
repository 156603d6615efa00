"""What the commands of the command line do, apart from reading their flags."""

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intnacl.config import resolve
from intnacl.errors import InputError
from intnacl.stages import default_folder, pretrain
from intnacl.training.distributed import pick_device, ranks
from intnacl.training.stopping import Stop

EXIT_CODES = {"terminate": 75, "interrupt": 130}  # sysexits' EX_TEMPFAIL: try again later; Ctrl-C's


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
    return EXIT_CODES.get(reason or "", 0)


def resume_command() -> str:
    """The command line of this process, to be run again; under torchrun, that of one node."""
    arguments = ["-m", "intnacl", *sys.argv[1:]]
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return shlex.join(["torchrun", "--nproc-per-node", os.environ["LOCAL_WORLD_SIZE"], *arguments])
    installed = Path(sys.argv[0]).name == "intnacl"
    return shlex.join(["intnacl", *sys.argv[1:]] if installed else ["python", *arguments])


def bench_command(device: str, steps: int, out: Path | None) -> None:
    """Time every row and print the table."""
    from rich.console import Console
    from rich.table import Table

    from intnacl.bench import ROWS, hardware, measure

    here = pick_device(device)
    print(f"{hardware(here)}, 256 pairs a step, 32x32, ResNet-18")
    table = Table("loss", "ms a step", "of it views", "100 epochs, min", "memory, GiB", "way")
    rows = []
    for name in ROWS:
        rows.append(row := measure(name, here, steps=steps))
        share = f"{row['views_ms']:.2f} ({100 * row['views_ms'] / row['ms']:.0f} %)"
        memory = f"{row['memory_gib']:.1f}" if row["memory_gib"] else "–"
        way = f"{row['precision']}, {row['way']}"
        table.add_row(name, f"{row['ms']:.2f}", share, f"{row['epochs_100_min']:.2f}", memory, way)
    Console().print(table)
    if out:
        out.write_text(json.dumps({"hardware": hardware(here), "rows": rows}, indent=1))
