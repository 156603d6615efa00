"""What the commands that train do, apart from reading their flags."""

import os
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from intnacl.cli.flags import Flags
from intnacl.console import print_table
from intnacl.errors import InputError
from intnacl.files import make_folder, write_json
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import RunFolder, default_folder, file_name, loss_name
from intnacl.runs.pretrain import pretrain
from intnacl.runs.resolve import resolve, warn_of_unused
from intnacl.training.ranks import Ranks, pick_device, ranks
from intnacl.training.stop import Stop

COMPARED = ("simclr", "intnacl")  # where nothing is named
EXIT_CODES = {"terminate": 75, "interrupt": 130}  # sysexits' EX_TEMPFAIL: try again later; Ctrl-C's


def pretrain_command(flags: Flags) -> int:
    """Train an encoder; returns the exit code."""

    def _work(config: RunConfig, folder: RunFolder, here: Ranks, stop: Stop) -> str | None:
        reason = pretrain(config, folder, here, stop)
        if reason is None and here.main:
            print(f"done: {folder.encoder}")
        return reason

    return train(flags, _work)


def run_command(flags: Flags, more: Mapping[str, Any] | None = None) -> int:
    """Train an encoder and measure it; returns the exit code."""
    from intnacl.runs import run
    from intnacl.runs.tables import print_result

    def _work(config: RunConfig, folder: RunFolder, here: Ranks, stop: Stop) -> str | None:
        reason = run(config, folder, here, stop, print if here.main else _silent)
        if reason is None and here.main:
            print_result(folder)
        return reason

    return train(flags, _work, more)


def compare_command(
    flags: Flags, presets: Sequence[str], seeds: Sequence[int], more: Mapping[str, Any] | None = None
) -> int:
    """Run presets side by side; returns the exit code."""
    from intnacl.runs.compare import compare, print_comparison, summarize, write_comparison

    with ranks(flags.device) as here, Stop(flags.max_minutes) as stop:
        configs = compared_configs(flags, presets, here, more)
        _warn_of_unused(flags, configs.values(), here)
        labels, first = list(configs), next(iter(configs.values()))
        seeds = list(dict.fromkeys(seeds or [first.seed]))
        folder = flags.out or Path("runs") / file_name(first.dataset)
        reason = compare(configs, seeds, folder, here, stop, print if here.main else _silent)
    if here.main and reason is None:
        summary = summarize(folder, labels, seeds)
        drawing, figures = write_comparison(summary, folder)
        print_comparison(summary)
        pages = RunFolder(folder / f"{_braces(labels)}-seed{_braces(seeds)}").page
        print(f"written: {drawing}, {figures}, {pages}")
    return _end(reason, here)


def compared_configs(
    flags: Flags, presets: Sequence[str], here: Ranks, more: Mapping[str, Any] | None = None
) -> dict[str, RunConfig]:
    """Label -> configuration of the presets; without any, of the run that flags name, else of `COMPARED`."""
    if not presets and _names_a_run(flags):
        config = resolve_flags(flags, here, more)
        return {flags.preset or loss_name(config): config}
    return {
        preset: resolve_flags(replace(flags, preset=preset), here, more) for preset in presets or COMPARED
    }


def _braces(items: Sequence[object]) -> str:
    """Several items as a shell expands them; it takes braces around a single one literally."""
    text = ",".join(map(str, items))
    return f"{{{text}}}" if len(items) > 1 else text


def is_comparison(flags: Flags, presets: Sequence[str], seeds: Sequence[int]) -> bool:
    """Whether several runs are asked for: by --compare, by --seeds, or by naming neither data nor loss."""
    if presets and flags.preset:
        raise InputError(f"--preset {flags.preset} and --compare exclude each other: name it in --compare.")
    if seeds and flags.seed is not None:
        raise InputError(f"--seed {flags.seed} and --seeds exclude each other: name it in --seeds.")
    return bool(presets or seeds) or not _names_a_run(flags)


def _names_a_run(flags: Flags) -> bool:
    """Whether flags say which data or loss."""
    named = {key.partition(".")[0] for key in flags.overrides} & {"loss", "dataset", "objective"}
    return bool(named or flags.preset or flags.config)


def train(
    flags: Flags,
    work: Callable[[RunConfig, RunFolder, Ranks, Stop], str | None],
    more: Mapping[str, Any] | None = None,
) -> int:
    """Do work that can be stopped on the run that flags stand for; settings of `more` come under them."""
    with ranks(flags.device) as here, Stop(flags.max_minutes) as stop:
        config = resolve_flags(flags, here, more)
        _warn_of_unused(flags, [config], here)
        reason = work(config, RunFolder(flags.out or default_folder(config)), here, stop)
    return _end(reason, here)


def _end(reason: str | None, here: Ranks) -> int:
    """Say why work ended early, if it did; returns the exit code, unless one of many ranks leaves with it."""
    if here.main and reason:
        tell_stop(reason)
    if here.world > 1:
        _leave(exit_code(reason))
    return exit_code(reason)


def _leave(code: int) -> NoReturn:
    """End a rank whose work is done and written.

    Not by way of the interpreter's end: there, once in a while, a thread of the process group aborts.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def resolve_flags(flags: Flags, here: Ranks, more: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration of flags on this device."""
    overrides = dict(more or {}) | flags.overrides
    return resolve(overrides, file=flags.config, preset=flags.preset, recipe=flags.recipe, device=here.device)


def _warn_of_unused(flags: Flags, configs: Collection[RunConfig], here: Ranks) -> None:
    if here.main:
        warn_of_unused(flags.overrides, configs)


def tell_stop(reason: str) -> None:
    """Say why it ended early, and how to go on."""
    print(f"stopped ({reason})\ngo on with: {resume_command()}")


def exit_code(reason: str | None) -> int:
    """0, also for a run that stopped at its time limit."""
    return EXIT_CODES.get(reason or "", 0)


def resume_command() -> str:
    """The command line of this process, to be run again; under torchrun, that of one node."""
    arguments = ["-m", "intnacl", *sys.argv[1:]]
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return shlex.join(["torchrun", "--nproc-per-node", os.environ["LOCAL_WORLD_SIZE"], *arguments])
    installed = Path(sys.argv[0]).name == "intnacl"
    return shlex.join(["intnacl", *sys.argv[1:]] if installed else ["python", *arguments])


def _silent(text: str) -> None:
    """What ranks other than the main one say."""


def bench_command(device: str, steps: int | None, only: tuple[str, ...], out: Path | None) -> None:
    """Time rows and print their table; what was timed is not lost where a later row fails."""
    from intnacl.runs.bench import chosen, hardware, measure

    here, names = pick_device(device), chosen(only)
    if steps is None:
        steps = 50 if here.type == "cuda" else 1  # seconds each
    if steps < 1:
        raise InputError(f"steps={steps} times nothing: give 1 or more.")
    if out and out.is_dir():
        raise InputError(f"--out {out} is a folder: give a JSON file.")
    if out:
        make_folder(out.parent)  # before the minutes that the rows take, not after them
    print(f"{hardware(here)}, 256 pairs a step, 32x32, ResNet-18")
    rows: list[dict[str, Any]] = []
    try:
        for name in names:
            print(f"timing {name} …", file=sys.stderr)
            rows.append(measure(name, here, steps=steps))
            print(f"  {rows[-1]['ms']:.2f} ms a step", file=sys.stderr)  # should the table never come
            if out:
                write_json(out, {"hardware": hardware(here), "rows": rows})
    finally:
        _print_times(rows)


def _print_times(rows: list[dict[str, Any]]) -> None:
    heads = ["loss", "ms a step", "of it views", "100 epochs, min", "memory, GiB", "way"]
    lines = []
    for row in rows:
        times = f"{row['ms']:.2f} ({min(row['repeats_ms']):.2f} to {max(row['repeats_ms']):.2f})"
        share = f"{row['views_ms']:.2f} ({100 * row['views_ms'] / row['ms']:.0f} %)"
        memory = f"{row['memory_gib']:.1f}" if row["memory_gib"] else "–"
        way = f"{row['precision']}, {row['way']}"
        lines.append([row["loss"], times, share, f"{row['epochs_100_min']:.2f}", memory, way])
    print_table("", heads, lines, text=len(heads))
