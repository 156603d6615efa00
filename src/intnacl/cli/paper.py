"""`intnacl reproduce` and `report`: the paper's tables and figures."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from intnacl.flags import MANY


def reproduce(
    *,
    table: Annotated[tuple[str, ...], MANY] = (),
    row: Annotated[tuple[str, ...], MANY] = (),
    all_: Annotated[bool, Parameter(name="--all", negative=())] = False,
    list_: Annotated[bool, Parameter(name="--list", negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    trials: int = 5,
    seeds: Annotated[tuple[int, ...], MANY] = (),
    scale: str = "paper",
    config: Path | None = None,
    root: Path | None = None,
    out: Path = Path("results"),
    device: str = "auto",
    workers: int | None = None,
    ray: str | None = None,
    max_minutes: float | None = None,
    set_: Annotated[tuple[str, ...], MANY, Parameter(name="--set")] = (),
) -> None:
    """Do the runs behind the paper's tables and figures, or behind those of a grid of your own.

    Runs that several tables share are done once. Finished ones are skipped, half-done ones go on, failed ones
    are tried again and then listed. Several processes on the same --out share the work.

    **Examples**

    ```
    intnacl reproduce --list
    intnacl reproduce --table 2 figure1 --trials 5 --root ~/data --out results
    intnacl reproduce --all --scale tiny --trials 1 --out tiny   # digits
    intnacl reproduce --table main --row SimCLR IntCl --seeds 0 --max-minutes 120
    intnacl reproduce --config my_grid.toml --workers 2
    intnacl reproduce --all --ray auto         # on the cluster of `ray start`
    ```

    Parameters
    ----------
    table
        Names of `--list`; 2, 3 and 4 are the main tables.
    row
        Only the runs behind rows of these labels, or "GROUP, LABEL"s.
    all_
        Every table and figure.
    list_
        Show the tables with their runs and estimated GPU time.
    dry_run
        Print the configurations of the runs, one JSON object a line.
    trials
        How many seeds: 0, 1, …
    seeds
        These seeds instead.
    scale
        paper, or tiny: the same tables on the digits, which checks the machinery and nothing else.
    config
        A TOML file with tables of your own.
    root
        Folder of the data sets; by default $INTNACL_DATA, else ~/.cache/intnacl.
    out
        Results folder, shared by all machines.
    device
        auto, cpu, cuda, cuda:1 …
    workers
        Runs at a time: by default one a GPU, or one on the CPU; 0 runs them in this process.
    ray
        Address of a Ray cluster: auto, or HOST:PORT.
    max_minutes
        Stop cleanly after so many minutes; the same command goes on later.
    set_
        Settings of every run by their dotted names, such as augment.strength=0.5.
    """
    from intnacl.commands import exit_code
    from intnacl.experiments import reproduce as experiments
    from intnacl.flags import pairs

    request = experiments.Request(
        tables=table, rows=row, everything=all_, scale=scale, seeds=experiments.seeds_of(trials, seeds),
        grid=config, out=out, device=device, workers=workers, ray=ray, max_minutes=max_minutes,
        overrides=({"root": str(root.absolute())} if root else {}) | pairs(set_),
    )  # fmt: skip
    if list_:
        experiments.list_tables(request)
    elif dry_run:
        experiments.print_plan(request)
    else:
        reason, failed = experiments.reproduce(request)
        sys.exit(exit_code(reason) or int(failed > 0))


def report(results: Path = Path("results"), *, out: Path | None = None) -> None:
    """Write the report of a results folder: measured values beside the published ones.

    Writes report.html (one page that needs no other file), report.md, report.tex, results.csv, and figures as
    SVG and PNG.

    **Examples**

    ```
    intnacl report results
    intnacl report results --out report
    ```

    Parameters
    ----------
    results
        The --out of `intnacl reproduce`.
    out
        Folder of the report; by default RESULTS/report.
    """
    from intnacl.experiments.report import write_report

    for path in write_report(results, out or results / "report"):
        print(path)
