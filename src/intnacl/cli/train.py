"""`intnacl pretrain`, `run` and `supervised`, which train, and `bench`, which times a step of it."""

import sys
from pathlib import Path
from typing import Annotated

from intnacl.cli.flags import MANY, Flags, pairs

DEFAULTS = Flags()


def pretrain(flags: Flags = DEFAULTS) -> None:
    """Train an encoder with any loss of the family; the same command with the same --out resumes.

    **Examples**

    ```
    intnacl pretrain                      # SimCLR on the embedded digits
    intnacl pretrain --dataset cifar100 --preset intnacl --out runs/c100
    intnacl pretrain --dataset folder:~/images --set encoder.name=resnet34
    intnacl pretrain --preset hardneg --set loss.beta=2 train.optimizer=lars
    torchrun --nproc-per-node 8 -m intnacl pretrain --dataset cifar100
    ```
    """
    from intnacl.cli.commands import pretrain_command

    sys.exit(pretrain_command(flags))


def run(
    flags: Flags = DEFAULTS,
    *,
    compare: Annotated[tuple[str, ...], MANY] = (),
    seeds: Annotated[tuple[int, ...], MANY] = (),
    transfer: Annotated[tuple[str, ...], MANY] = (),
) -> None:
    """Pretrain, probe and attack in one go; writes result.json and report.html. The same command resumes.

    Without arguments, compares SimCLR with IntNaCl on the embedded digits: about two minutes on two cores.

    **Examples**

    ```
    intnacl run                            # SimCLR and IntNaCl on digits
    intnacl run --seeds 0 1 2 3 4          # mean ± sd of five seeds
    intnacl run --preset intcl             # one loss
    intnacl run --dataset cifar100 --preset intnacl --transfer cifar10
    intnacl run --dataset cifar100 --compare simclr adv intnacl --seeds 0 1 2
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
    from intnacl.cli.commands import compare_command, is_comparison, run_command

    more = {"evaluation.transfer": transfer} if transfer else {}
    if is_comparison(flags, compare, seeds):
        sys.exit(compare_command(flags, compare, seeds, more))
    sys.exit(run_command(flags, more))


def supervised(flags: Flags = DEFAULTS) -> None:
    """Train the same encoder end to end with labels, then probe and attack it like a contrastive one.

    There is no contrastive loss, so --preset, --num-positives, --lam and --alpha are refused, and so are the
    settings of loss and adversary in --set.

    **Examples**

    ```
    intnacl supervised
    intnacl supervised --dataset cifar100 --out runs/supervised
    intnacl supervised --dataset cifar100 --set augment=crop_flip --out runs/sup
    ```
    """
    from intnacl.cli.commands import run_command
    from intnacl.errors import InputError

    names = ("preset", "num_positives", "lam", "alpha")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(flags, name) is not None]
    given += [f"--set {key}" for key in pairs(flags.set_) if key.startswith(("loss.", "adversary."))]
    if given:
        raise InputError(
            f"{given[0]} belongs to contrastive losses, and supervised training has none: leave it out."
        )
    sys.exit(run_command(flags, {"objective": "supervised"}))


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
    from intnacl.cli.commands import bench_command

    bench_command(device, steps, only, out)
