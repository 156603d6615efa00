"""A progress bar for slow work: shown on a terminal, silent in logs and tests."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def progress(
    description: str, total: int | None, *, in_bytes: bool = False
) -> Iterator[Callable[[int], None]]:
    """A bar on stderr until the block ends; call the yielded function with each amount done."""
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich import progress as bars
    from rich.console import Console

    done = bars.DownloadColumn() if in_bytes else bars.MofNCompleteColumn()
    name = bars.TextColumn("{task.description}", markup=False)  # a path may hold brackets
    columns = (name, bars.BarColumn(), done, bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)


@contextmanager
def watched(module: nn.Module, description: str, total: int | None) -> Iterator[None]:
    """A bar that counts the images that pass through the module; `total` may be more than will."""
    with progress(description, total) as advance:
        hook = module.register_forward_hook(lambda module, inputs, output: advance(len(output)))
        try:
            yield
        finally:
            hook.remove()
