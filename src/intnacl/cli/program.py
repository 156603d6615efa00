"""The program `intnacl`: its commands and its exit codes.

`intnacl COMMAND --help` explains each command with examples. Commands import what they need when they run,
so that `--help` answers at once.
"""

import errno
import io
import os
import re
import sys
from itertools import pairwise
from typing import NoReturn

from cyclopts import App, CycloptsError, UnknownOptionError, UnusedCliTokensError

from intnacl.cli import classifier, datasets, listing, measure, paper, theory, train
from intnacl.cli.flags import USUAL
from intnacl.console import show_warnings_once

# Errors of a file system that are not the program's fault.
REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENAMETOOLONG)

app = App(
    name="intnacl",
    help="Contrastive representation learning that is accurate and robust.",
    default_parameter=USUAL,
)
app.command(datasets.datasets)
for command in (
    theory.nca, theory.bounds, train.pretrain, train.run, train.supervised, train.bench,
    measure.probe, measure.knn, measure.attack, measure.corruptions, measure.embed, measure.export,
    classifier.finetune, classifier.predict,
    listing.runs, paper.reproduce, paper.report,
):  # fmt: skip
    app.command(command)


def main() -> None:
    """Run the command line.

    A user's mistake ends with one clear line and exit code 2; a lost rank or worker, a lack of memory or a
    file that cannot be written with one line and 1; a closed pipe silently with 1.
    """
    from intnacl.errors import InputError, LostRankError, LostWorkerError

    _let_waiting_threads_sleep()
    show_warnings_once()
    for stream in (sys.stdout, sys.stderr):  # a file's name may not be UTF-8
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        _check_words(sys.argv[1:])
        app(print_error=False, exit_on_error=False)
    except CycloptsError as error:
        _fail(2, _explain(error))
    except InputError as error:
        _fail(2, str(error))
    except (LostRankError, LostWorkerError) as error:
        _fail(1, str(error))
    except (MemoryError, RuntimeError) as error:
        from intnacl.training.step import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        _fail(1, "out of memory: lower the batch size, or use a machine with more memory.")
    except BrokenPipeError:  # the reader of our output has ended, for example `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        place = f"{error.filename}: " if error.filename else ""
        _fail(1, f"{place}{error.strerror}: choose another place (--out, --root).")


def _let_waiting_threads_sleep() -> None:
    """Let OpenMP's waiting threads sleep after microseconds, unless the user has set a time.

    The operations of a small network are so short that threads mostly wait. By default they spin for
    milliseconds, on cores that other processes need: next to a single busy process, training took three times
    as long. This must be set before torch is loaded.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "400"


def _fail(code: int, message: str) -> NoReturn:
    print(f"intnacl: {message}", file=sys.stderr)
    sys.exit(code)


def _check_words(words: list[str]) -> None:
    """Raise if a value is empty, because an empty path would mean the current folder."""
    from intnacl.errors import InputError

    for before, word in pairwise(["", *words]):
        if not word or re.fullmatch(r"--[\w-]+=", word):
            named = word or (f"the value of {before}" if before.startswith("--") else "an argument")
            raise InputError(f"{named} is empty: is it a shell variable that is not set?")


def _explain(error: CycloptsError) -> str:
    """Return a message about a mistake on the command line, and what to write instead."""
    from intnacl.errors import printable

    text = str(error)
    if isinstance(error, UnusedCliTokensError):
        text = f"unexpected argument {' '.join(error.unused_tokens or ())!r}."
    if isinstance(error, UnknownOptionError):
        from intnacl.runs.config import SETTINGS

        name = (error.token.keyword or "").strip("-").replace("-", "_")
        part = "probe." if error.command_chain == ("probe",) else ""  # `probe` only takes its own settings
        keys = (key for key in SETTINGS if key.startswith(part))
        key = next((key for key in keys if key.rpartition(".")[2] == name), None)
        if key and any("--set" in argument.names for argument in error.argument_collection):
            return f"{error.token.keyword} is not a flag: write --set {key}=…"
    text = "\n".join(map(printable, text.splitlines()))
    return f"{text} `intnacl {' '.join([*(error.command_chain or ()), '--help'])}` shows how."
