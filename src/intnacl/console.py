"""The terminal: progress bars, tables and warnings."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from intnacl.errors import InputWarning, printable

if TYPE_CHECKING:
    from torch import nn

UNLIMITED_WIDTH = 10_000  # characters per line of a table that is written to a file or a pipe


def show(text: str) -> None:
    """Print a line for the user and flush it, with control characters escaped."""
    print(printable(text), flush=True)


@contextmanager
def progress(
    description: str, total: int | None, *, in_bytes: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr until the block ends, if stderr is a terminal.

    Call the yielded function with the amount done since the last call.
    """
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich import progress as bars
    from rich.console import Console

    done = bars.DownloadColumn() if in_bytes else bars.MofNCompleteColumn()
    name = bars.TextColumn("{task.description}", markup=False)  # a path may hold brackets
    columns = (name, bars.BarColumn(), done, bars.TimeRemainingColumn())
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(printable(description), total=total)
        yield lambda amount: bar.advance(task, amount)


@contextmanager
def watched(module: "nn.Module", description: str, total: int | None) -> Iterator[None]:
    """Show a progress bar of the images that pass through the module; `total` may be an upper bound."""
    with progress(description, total) as advance:
        hook = module.register_forward_hook(lambda module, inputs, output: advance(len(output)))
        try:
            yield
        finally:
            hook.remove()


def print_table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, text: int = 1, whole: bool = False
) -> None:
    """Print a table whose first `text` columns are text and whose other columns are right-aligned numbers.

    If there are several columns of text, the first is kept on one line; a single one is folded where it is
    long. For tables of many columns, `whole` folds only text, never numbers, and folds nothing where no
    terminal limits the width.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for i, head in enumerate(heads):
        # Long names are folded, not truncated: names of folders differ at their ends.
        one_line = i >= text if whole else i == 0 and text > 1
        table.add_column(head, justify="left" if i < text else "right", overflow="fold", no_wrap=one_line)
    for row in rows:
        table.add_row(*map(printable, row))
    if title:
        print(f"\n{printable(title)}")
    unlimited = whole and not sys.stdout.isatty()
    Console(markup=False, width=UNLIMITED_WIDTH if unlimited else None).print(
        table
    )  # a path may hold brackets


def two_decimals(value: float | None) -> str:
    """Format a figure of a table; a missing one is a dash."""
    return "–" if value is None else f"{value:.2f}"


def print_warnings(messages: Iterable[str]) -> None:
    """Print each message once."""
    for message in dict.fromkeys(messages):
        show(f"warning: {message}")


def show_warnings_once() -> None:
    """Show each warning once per process, and an InputWarning without its place in the code.

    Warnings about characters that a figure's font lacks are not shown.
    """
    # Python's own `once` forgets whenever a library enters `catch_warnings`, and is per module.
    warnings.simplefilter("always", InputWarning, append=True)  # after those of -W and PYTHONWARNINGS
    warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", append=True)
    printed: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = f"{filename}:{lineno}: {category.__name__}: {message}\n"
        if issubclass(category, InputWarning):
            text = f"intnacl: warning: {message}\n"
        if text not in printed:
            printed.add(text)
            print(text, end="", file=file or sys.stderr)

    warnings.showwarning = show
