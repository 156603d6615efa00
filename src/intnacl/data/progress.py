"""A progress bar for slow work: shown on a terminal, silent in logs and tests."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(
    description: str, total: int | None, *, in_bytes: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr while the block runs; call the yielded function with each amount done."""
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich import progress as bars
    from rich.console import Console

    done = bars.DownloadColumn() if in_bytes else bars.MofNCompleteColumn()
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), done, bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)
