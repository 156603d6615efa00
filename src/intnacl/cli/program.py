"""The program `intnacl`: its commands, and how it ends.

`intnacl COMMAND --help` explains each command with examples. Commands import what they need when they run,
so that `--help` answers at once.
"""

import errno
import os
import re
import sys
from itertools import pairwise

from cyclopts import App, CycloptsError, UnknownOptionError, UnusedCliTokensError

from intnacl.cli import datasets, measure, paper, theory, train
from intnacl.cli.flags import USUAL
from intnacl.console import show_warnings_once

# What a file system refuses for the user's sake, not for a mistake of the program.
REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENAMETOOLONG)

app = App(
    name="intnacl",
    help="Contrastive representation learning that is accurate and robust.",
    default_parameter=USUAL,
)
app.command(datasets.datasets)
for command in (
    theory.nca, theory.bounds, train.pretrain, train.run, train.supervised, train.bench,
    measure.probe, measure.knn, measure.attack, measure.embed, measure.export, paper.reproduce, paper.report,
):  # fmt: skip
    app.command(command)


def main() -> None:
    """Run the command line; a user's mistake ends in one clear line and exit code 2, a lost rank, a lack of
    memory or a file that may not be touched in 1.

    A closed pipe ends it without a word.
    """
    from intnacl.errors import InputError, LostRankError

    show_warnings_once()
    try:
        _check_words(sys.argv[1:])
        app(print_error=False, exit_on_error=False)
    except CycloptsError as error:
        print(f"intnacl: {_mistake(error)}", file=sys.stderr)
        sys.exit(2)
    except InputError as error:
        print(f"intnacl: {error}", file=sys.stderr)
        sys.exit(2)
    except LostRankError as error:
        print(f"intnacl: {error}", file=sys.stderr)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        from intnacl.training.step import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        print("intnacl: out of memory: ask for less, or take a machine with more.", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # whoever read our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        place = f"{error.filename}: " if error.filename else ""
        print(f"intnacl: {place}{error.strerror}: take another place (--out, --root).", file=sys.stderr)
        sys.exit(1)


def _check_words(words: list[str]) -> None:
    """Raise where a value is empty: as a path, it would be the current folder."""
    from intnacl.errors import InputError

    for before, word in pairwise(["", *words]):
        if not word or re.fullmatch(r"--[\w-]+=", word):
            named = word or (f"the value of {before}" if before.startswith("--") else "an argument")
            raise InputError(f"{named} is empty: is it a variable of the shell that is not set?")


def _mistake(error: CycloptsError) -> str:
    """What is wrong with the words of the command line, and what to write instead."""
    text = str(error)
    if isinstance(error, UnusedCliTokensError):
        text = f"{' '.join(error.unused_tokens or ())!r} stands without a flag."
    if isinstance(error, UnknownOptionError) and (setting := _setting(error)):
        return f"{error.token.keyword} is no flag: write --set {setting}=…"
    return f"{text} `intnacl {' '.join([*(error.command_chain or ()), '--help'])}` shows how."


def _setting(error: UnknownOptionError) -> str | None:
    """The setting that an unknown flag is named like, if the command takes settings."""
    if not any("--set" in argument.names for argument in error.argument_collection):
        return None
    from intnacl.runs.config import SETTINGS

    name = (error.token.keyword or "").strip("-").replace("-", "_")
    return next((key for key in SETTINGS if key.rpartition(".")[2] == name), None)
