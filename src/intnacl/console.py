"""The terminal: progress bars, tables and warnings."""

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from intnacl.errors import InputWarning, printable

if TYPE_CHECKING:
    from torch import nn

UNLIMITED = 10_000  # columns of a table that is written to a file or a pipe


def show(text: str) -> None:
    """Print a line for the user at once, with whatever a terminal would act on escaped."""
    print(printable(text), flush=True)


@contextmanager
def progress(
    description: str, total: int | None, *, in_bytes: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr until the block ends, if that is a terminal.

    Call the yielded function with each amount that has been done.
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
    """Show a bar that counts the images passing through the module; `total` may be more than will."""
    with progress(description, total) as advance:
        hook = module.register_forward_hook(lambda module, inputs, output: advance(len(output)))
        try:
            yield
        finally:
            hook.remove()


def print_table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, text: int = 1, whole: bool = False
) -> None:
    """Print a table whose first `text` columns are text and whose others are numbers, aligned right.

    Names beside other text are kept on one line; beside numbers they may be long, and are folded. In a table
    of many columns, `whole` folds text alone, never numbers, and nothing where no terminal limits the width.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for i, head in enumerate(heads):
        # Long names are folded, not cut: those of folders differ in their ends.
        one_line = i >= text if whole else i == 0 and text > 1
        table.add_column(head, justify="left" if i < text else "right", overflow="fold", no_wrap=one_line)
    for row in rows:
        table.add_row(*map(printable, row))
    if title:
        print(f"\n{printable(title)}")
    unlimited = whole and not sys.stdout.isatty()
    Console(markup=False, width=UNLIMITED if unlimited else None).print(table)  # a path may hold brackets


def two_decimals(value: float | None) -> str:
    """Format a figure of a table; a missing one is a dash."""
    return "–" if value is None else f"{value:.2f}"


def print_warnings(messages: Iterable[str]) -> None:
    """Print each message once."""
    for message in dict.fromkeys(messages):
        show(f"warning: {message}")


def show_warnings_once() -> None:
    """Show each warning once for the whole process, those for users without a place in the code.

    Warnings about letters that a figure's font lacks are not shown.
    """
    # Python's own `once` forgets whenever a library enters `catch_warnings`, and counts each module apart.
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
