"""`intnacl pretrain`, `run` and `supervised`, which train, and `bench`, which times a training step."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from intnacl.cli.flags import MANY, Flags, pairs
from intnacl.errors import InputError

if TYPE_CHECKING:
    from intnacl.runs.config import RunConfig
    from intnacl.training.ranks import Ranks

DEFAULTS = Flags()
COMPARED = ("simclr", "intnacl")  # if neither a loss nor a data set is given
EXIT_CODES = {"terminate": 75, "interrupt": 130}  # EX_TEMPFAIL of sysexits (try again later), and Ctrl-C


def pretrain(flags: Flags = DEFAULTS) -> None:
    """Train an encoder with any loss of the family; the same command with the same --out resumes.

    **Examples**

    ```
    intnacl pretrain                      # SimCLR on the embedded digits
    intnacl pretrain --dataset cifar100 --preset intnacl --out runs/c100
    intnacl pretrain --dataset folder:~/images --size 64
    intnacl pretrain --batch-size 512 --set encoder.name=resnet34
    intnacl pretrain --preset hardneg --set loss.beta=2 train.optimizer=lars
    torchrun --nproc-per-node 8 -m intnacl pretrain --dataset cifar100
    ```
    """
    from intnacl.console import show
    from intnacl.runs.folder import RunFolder, default_folder
    from intnacl.runs.pretrain import pretrain as train_encoder
    from intnacl.training.ranks import ranks
    from intnacl.training.stop import Stop

    with ranks(flags.device) as here, Stop(flags.max_minutes) as stop:
        (config,) = _resolve(flags, {}, here).values()
        folder = RunFolder(flags.out or default_folder(config))
        reason = train_encoder(config, folder, here, stop)
        if reason is None and here.main:
            show(f"done: {folder.encoder}")
    end(reason, here)


def run(
    flags: Flags = DEFAULTS,
    *,
    compare: Annotated[tuple[str, ...], MANY] = (),
    seeds: Annotated[tuple[int, ...], MANY] = (),
    transfer: Annotated[tuple[str, ...], MANY] = (),
) -> None:
    """Pretrain, probe and attack in one go; write result.json and report.html. The same command resumes.

    Without arguments, compares SimCLR with IntNaCl on the embedded digits: about two minutes on two cores.

    **Examples**

    ```
    intnacl run                            # SimCLR and IntNaCl on digits
    intnacl run --seeds 0 1 2 3 4          # mean ± sd of five seeds
    intnacl run --preset intcl             # one loss
    intnacl run --dataset cifar100 --preset intnacl --transfer cifar10
    intnacl run --dataset cifar100 --compare simclr adv intnacl --seeds 0 1 2
    intnacl run --dataset cifar10 --recipe robust    # for attacks of 8/255
    intnacl run --recipe robust --seeds 0 1 2        # teachers and students
    ```

    Parameters
    ----------
    compare
        Presets to compare; by default simclr and intnacl if neither a loss nor a data set is given.
    seeds
        Seeds to run; by default --seed, or 0.
    transfer
        More data sets to probe and attack.
    """
    if compare and flags.preset:
        raise InputError(f"--preset {flags.preset} and --compare exclude each other: name it in --compare.")
    if seeds and flags.seed is not None:
        raise InputError(f"--seed {flags.seed} and --seeds exclude each other: name it in --seeds.")
    more = {"evaluation.transfer": transfer} if transfer else {}
    if flags.names_a_run and not (compare or seeds):
        _run(flags, more)

    from intnacl.console import show
    from intnacl.data.datasets import local_name
    from intnacl.runs.compare import compare as run_all
    from intnacl.runs.compare import with_teacher, write_comparison
    from intnacl.runs.config import loss_name
    from intnacl.runs.folder import file_name
    from intnacl.training.ranks import ranks
    from intnacl.training.stop import Stop

    with ranks(flags.device) as here, Stop(flags.max_minutes) as stop:
        presets = compare or (() if flags.names_a_run else COMPARED)
        resolved = _resolve(flags, more, here, presets)
        configs = {preset or loss_name(config): config for preset, config in resolved.items()}
        first = next(iter(configs.values()))
        if first.objective == "distill" and first.distill.teacher is None:
            configs = with_teacher(first)
        seeds = tuple(dict.fromkeys(seeds or (first.seed,)))
        folder = flags.out or Path("runs") / file_name(local_name(first.dataset))
        reason = run_all(configs, seeds, folder, here, stop, show)
    if here.main and reason is None:
        write_comparison(folder, list(configs), seeds)
    end(reason, here)


def supervised(flags: Flags = DEFAULTS) -> None:
    """Train the same encoder end to end with labels, then probe and attack it like a contrastive one.

    There is no contrastive loss, so --preset, --num-positives, --lam and --alpha are refused, and so are
    --teacher and the settings of loss, adversary and distill in --set.

    **Examples**

    ```
    intnacl supervised
    intnacl supervised --dataset cifar100 --out runs/supervised
    intnacl supervised --dataset cifar100 --augment crop_flip --out runs/sup
    ```
    """
    names = ("preset", "num_positives", "lam", "alpha", "teacher")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(flags, name) is not None]
    given += [
        f"--set {key}" for key in pairs(flags.set_) if key.startswith(("loss.", "adversary.", "distill."))
    ]
    if given:
        raise InputError(f"{given[0]} does not apply to supervised training: leave it out.")
    _run(flags, {"objective": "supervised"})


def bench(
    *,
    only: Annotated[tuple[str, ...], MANY] = (),
    device: str = "auto",
    steps: int | None = None,
    out: Path | None = None,
) -> None:
    """Time a training step of several losses; report memory, hardware and versions.

    **Examples**

    ```
    intnacl bench
    intnacl bench --device cuda --out bench.json
    intnacl bench --only simclr
    ```

    Parameters
    ----------
    only
        Only rows whose names contain one of these texts.
    device
        auto, cpu, cuda, cuda:1 …
    steps
        Steps per measurement. Each is repeated three times; the table shows median and range. By default 50
        on a GPU and 1 on a CPU, where a row takes minutes.
    out
        JSON file for the results, rewritten after every row.
    """
    from intnacl.runs.bench import time_losses
    from intnacl.training.ranks import pick_device

    time_losses(pick_device(device), steps, only, out)


def _run(flags: Flags, more: Mapping[str, object]) -> NoReturn:
    """Train and measure the run of the flags, which override the settings `more`."""
    from intnacl.console import show
    from intnacl.runs.folder import RunFolder, default_folder
    from intnacl.runs.page import print_result
    from intnacl.runs.stages import train_and_measure
    from intnacl.training.ranks import ranks
    from intnacl.training.stop import Stop

    with ranks(flags.device) as here, Stop(flags.max_minutes) as stop:
        (config,) = _resolve(flags, more, here).values()
        folder = RunFolder(flags.out or default_folder(config))
        reason = train_and_measure(config, folder, here, stop, show)
        if reason is None and here.main:
            print_result(folder)
    end(reason, here)


def _resolve(
    flags: Flags, more: Mapping[str, object], here: "Ranks", presets: Sequence[str] = ()
) -> "dict[str | None, RunConfig]":
    """Return the configuration of the flags, which override the settings `more`, for each preset if any.

    Warn of flags that no run uses.
    """
    from intnacl.runs.resolve import resolve, warn_of_unused

    configs = {
        preset: resolve(
            {**more, **flags.overrides},
            file=flags.config,
            preset=preset,
            recipe=flags.recipe,
        )
        for preset in presets or (flags.preset,)
    }
    if here.main:
        warn_of_unused(flags.overrides, configs.values())
    return configs


def end(reason: str | None, here: "Ranks") -> NoReturn:
    """Exit; if the work was stopped early, print the `reason` and the command that resumes it."""
    from intnacl.console import show

    if here.main and reason:
        show(f"stopped ({reason})")
        show(f"resume with: {resume_command()}")
    code = EXIT_CODES.get(reason or "", 0)  # 0 also for a run that stopped at its time limit
    if here.world > 1:
        # A thread of the process group occasionally aborts during the interpreter's normal shutdown.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def resume_command() -> str:
    """Return the command line that repeats this process; under torchrun, for a single node."""
    arguments = ["-m", "intnacl", *sys.argv[1:]]
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return shlex.join(["torchrun", "--nproc-per-node", os.environ["LOCAL_WORLD_SIZE"], *arguments])
    installed = Path(sys.argv[0]).name == "intnacl"
    return shlex.join(["intnacl", *sys.argv[1:]] if installed else ["python", *arguments])
