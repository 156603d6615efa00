"""`intnacl pretrain`, `run` and `supervised`, which train, and `bench`, which times a step of it."""

import sys
from pathlib import Path
from typing import Annotated

from intnacl.flags import MANY, Flags

DEFAULTS = Flags()


def pretrain(flags: Flags = DEFAULTS) -> None:
    """Train an encoder with any loss of the family; the same command on the same --out goes on.

    **Examples**

    ```
    intnacl pretrain                      # SimCLR on the embedded digits
    intnacl pretrain --dataset cifar100 --preset intnacl --out runs/c100
    intnacl pretrain --dataset folder:~/pictures --set encoder.name=resnet34
    intnacl pretrain --preset hardneg --set loss.beta=2 train.optimizer=lars
    torchrun --nproc-per-node 8 -m intnacl pretrain --dataset cifar100
    ```
    """
    from intnacl.commands import pretrain_command

    sys.exit(pretrain_command(flags))


def run(
    flags: Flags = DEFAULTS,
    *,
    compare: Annotated[tuple[str, ...], MANY] = (),
    seeds: Annotated[tuple[int, ...], MANY] = (),
    transfer: Annotated[tuple[str, ...], MANY] = (),
) -> None:
    """Pretrain, probe and attack in one go: result.json and report.html; the same command goes on.

    With no argument it compares SimCLR with IntNaCl on the embedded digits: about two minutes on two cores.

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
        Presets to run side by side; simclr and intnacl where no loss or data set is named.
    seeds
        Seeds of a comparison, or of the one run that is named; --seed, or 0, by default.
    transfer
        Further data sets to probe and attack.
    """
    from intnacl.commands import compare_command, is_comparison, run_command

    more = {"evaluation.transfer": transfer} if transfer else {}
    if is_comparison(flags, compare, seeds):
        sys.exit(compare_command(flags, compare, seeds, more))
    sys.exit(run_command(flags, more))


def supervised(flags: Flags = DEFAULTS) -> None:
    """Train the same encoder end to end with labels, then probe and attack it as a contrastive one.

    **Examples**

    ```
    intnacl supervised
    intnacl supervised --dataset cifar100 --out runs/supervised
    intnacl supervised --dataset cifar100 --set augment=crop_flip --out runs/sup
    ```
    """
    from intnacl.commands import run_command
    from intnacl.errors import InputError

    for name in ("preset", "num_positives", "lam", "alpha"):
        if getattr(flags, name) is not None:
            flag = name.replace("_", "-")
            raise InputError(
                f"--{flag} is of contrastive losses, and supervised training has none: leave it out."
            )
    sys.exit(run_command(flags, {"objective": "supervised"}))


def bench(
    *,
    only: Annotated[tuple[str, ...], MANY] = (),
    device: str = "auto",
    steps: int | None = None,
    out: Path | None = None,
) -> None:
    """Time a training step for losses of the family, with memory, hardware and versions.

    **Examples**

    ```
    intnacl bench
    intnacl bench --device cuda --out bench.json
    intnacl bench --only simclr
    ```

    Parameters
    ----------
    only
        Only rows whose names hold one of these texts.
    device
        auto, cpu, cuda, cuda:1 …
    steps
        Steps that are timed, three times over: the table has the median and the range. By default 50 on a
        GPU, 1 elsewhere, where a row takes minutes.
    out
        A JSON file for the figures, written anew after every row.
    """
    from intnacl.commands import bench_command

    bench_command(device, steps, only, out)
