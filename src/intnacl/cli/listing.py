"""`intnacl runs`: list and compare runs, on the console and as a page."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from intnacl.cli.flags import MANY


def runs(
    folder: Path = Path("runs"),
    *,
    filter_: Annotated[tuple[str, ...], MANY, Parameter(name="--filter")] = (),
    sort: str = "run",
    reverse: Annotated[bool, Parameter(negative=())] = False,
    compare: Annotated[tuple[str, ...], MANY] = (),
    html: Annotated[bool, Parameter(negative=())] = False,
    out: Path | None = None,
) -> None:
    """List the runs in a folder with their progress and accuracies, and name the best.

    Accuracies are on each run's own data set, as in its result; unfinished runs show their progress. If runs
    on a data set hold images out, the best run is chosen by figures on those.

    **Examples**

    ```
    intnacl runs
    intnacl runs results --sort fgsm --filter data=cifar100 'clean>=60'
    intnacl runs --filter train.epochs=100 loss=intnacl
    intnacl runs --compare runs/a runs/b       # settings and figures
    intnacl runs --html                        # learning curves, one page
    ```

    Parameters
    ----------
    folder
        A folder that holds runs, at any depth.
    filter_
        Only runs with KEY=VALUE (also !=, <, <=, >, >=), where KEY is a column (run, loss, data, progress,
        split, attacks, seed, epochs, clean, fgsm, pgd, knn, minutes) or a setting in docs/settings.md, and
        VALUE may have the wildcard *; or with this text in their names.
    sort
        A column, or changed: the most recently changed first. Accuracies and epochs are sorted from high to
        low.
    reverse
        Reverse the order.
    compare
        Two runs, by their names in the list or their paths: print the settings that differ, and the figures
        side by side.
    html
        Write a self-contained page with the learning curves of all runs in one plot.
    out
        The page's file; by default FOLDER/runs.html.
    """
    from intnacl.runs.listing import list_command

    list_command(folder, filter_, sort, reverse, compare, html, out)
