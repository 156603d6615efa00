"""`intnacl reproduce` and `report`: the paper's tables and figures."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from intnacl.cli.flags import MANY

OUT = Path("runs/paper")  # the default results folder


def reproduce(
    *,
    table: Annotated[tuple[str, ...], MANY] = (),
    row: Annotated[tuple[str, ...], MANY] = (),
    column: Annotated[tuple[str, ...], MANY] = (),
    all_: Annotated[bool, Parameter(name="--all", negative=())] = False,
    list_: Annotated[bool, Parameter(name="--list", negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    trials: int | None = None,
    seeds: Annotated[tuple[int, ...], MANY] = (),
    scale: str = "paper",
    config: Path | None = None,
    root: Path | None = None,
    out: Path = OUT,
    device: str = "auto",
    workers: int | None = None,
    ray: str | None = None,
    max_minutes: float | None = None,
    set_: Annotated[tuple[str, ...], MANY, Parameter(name="--set")] = (),
) -> None:
    """Perform the runs for the paper's tables and figures, or for your own grid.

    A run that several tables share is executed once. Finished runs are skipped, interrupted runs resume,
    failed runs are retried and then listed. Several processes with the same --out share the work.

    **Examples**

    ```
    intnacl reproduce --list
    intnacl reproduce --list --table main                        # its rows
    intnacl reproduce --table 2 figure1 --trials 5 --root ~/data --out mine
    intnacl reproduce --all --scale tiny --trials 1 --out tiny   # digits
    intnacl reproduce --table main --row SimCLR IntCl --seeds 0 --max-minutes 120
    intnacl reproduce --table more_epochs --column "100 epochs" "200 epochs"
    intnacl reproduce --config my_grid.toml --workers 2
    intnacl reproduce --all --ray auto         # on a Ray cluster
    ```

    Parameters
    ----------
    table
        Tables or figures by their names in `--list`; 2, 3 and 4 are short for table2, table3 and table4.
    row
        Only rows with these labels; where labels repeat, write "GROUP, LABEL".
    column
        Only the runs behind columns with these labels.
    all_
        Every table and figure.
    list_
        List the tables, or the rows of the given tables, with their runs and estimated GPU time.
    dry_run
        Print the configurations of the runs, one JSON object per line.
    trials
        Number of seeds: 0, 1, …; by default 5, as in the paper.
    seeds
        Use exactly these seeds.
    scale
        paper, or tiny: the same tables (or those of --config) on the digits, only to check the machinery.
    config
        A TOML file with your own tables.
    root
        Data folder; by default $INTNACL_DATA, else ~/.cache/intnacl.
    out
        Results folder, shared by all machines.
    device
        auto, cpu, cuda, cuda:1 …
    workers
        Number of runs in parallel: by default one per GPU, or one on the CPU; 0 runs them in this process.
    ray
        Address of a Ray cluster: auto, or HOST:PORT.
    max_minutes
        Save and stop after this many minutes; the same command resumes.
    set_
        Change settings of every run by dotted name, such as augment.strength=0.5.
    """
    from intnacl.cli.flags import pairs
    from intnacl.cli.train import EXIT_CODES
    from intnacl.paper import reproduce as experiments

    selection = experiments.Selection(
        tables=table,
        rows=row,
        columns=column,
        everything=all_,
        scale=scale,
        seeds=experiments.seeds_of(trials, seeds),
        grid=config,
        out=out,
        device=device,
        workers=workers,
        ray=ray,
        max_minutes=max_minutes,
        overrides=({"root": str(root.absolute())} if root else {}) | pairs(set_),
    )
    if list_:
        experiments.list_tables(selection)
    elif dry_run:
        experiments.print_plan(selection)
    else:
        reason, failed = experiments.reproduce(selection)
        sys.exit(EXIT_CODES.get(reason or "", 0) or int(failed > 0))


def report(results: Path = OUT, *, out: Path | None = None) -> None:
    """Write the report of a results folder: measured next to published values.

    Writes report.html (one self-contained page), report.md, report.tex, results.csv, and figures as
    SVG and PNG.

    **Examples**

    ```
    intnacl report
    intnacl report mine --out report
    ```

    Parameters
    ----------
    results
        The --out of `intnacl reproduce`.
    out
        Folder of the report; by default RESULTS/report.
    """
    from intnacl.console import show
    from intnacl.paper.report import write_report

    for path in write_report(results, out or results / "report"):
        show(str(path))
