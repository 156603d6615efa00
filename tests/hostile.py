"""Malformed inputs drawn from a seed. All must be accepted, or refused with a clear message.

Each kind of input has a generator in `hostile_inputs` or `hostile_data`; `Campaign.attempt` judges how the
program handles an input.
"""

import contextlib
import copy
import io
import json
import os
import pickle
import random
import re
import resource
import signal
import sys
import traceback
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from intnacl.cli import main
from intnacl.errors import InputError, InputWarning
from intnacl.runs import stages  # noqa: F401  (so that forked processes have it loaded)

LIMIT_S = 30  # for one input
MEMORY = 12 * 2**30  # bytes of address space, of which torch reserves much
REFUSED = 2  # the exit code for mistakes of users
EXIT_CODES = (0, REFUSED)
ENDINGS = ("taken", "refused", "warned")
NO_RESOURCE = re.compile(r"out of memory|choose another place|could not be written")  # may have exit code 1
DEEP = ("[" * 100_000, '{"a":' * 3000 + "1" + "}" * 3000, "[" * 500 + "]" * 500)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 99, 2**31, 2**63, 10**30, 0.5, -0.5, 1e38, 1e308, float("nan"), float("inf"),
    "", " ", "x", "nan", "1e400", "\x1b[31m", "a\nb", "\ud800", "\0", "../..", "digits", "folder:/nowhere",
    [], {}, [None], [[]], [1, 2], ["x"], {"a": 1}, {"": None}, [0.1, "x"], [float("nan")], "9" * 5000,
)  # fmt: skip


class TookTooLongError(BaseException):
    """Raised after `LIMIT_S`; not an Exception, so that only the campaign catches it."""


class Canary:
    """An object whose unpickling makes a folder, which reveals that code was run from data."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


class Campaign:
    """Attempts with inputs drawn from one seed, counted by their endings."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw = random.Random(seed)
        self.folder = folder
        self.canary = folder / "canary"
        self.counts: Counter[str] = Counter()
        self.failures: dict[str, list[str]] = {}

    def attempt(self, what: str, action: Callable[[], object]) -> None:
        """Count the ending of an input; remember it as a failure if it broke the rule."""
        printed, caught = io.StringIO(), []
        try:
            with (
                contextlib.redirect_stdout(printed),
                contextlib.redirect_stderr(printed),
                warnings.catch_warnings(record=True) as caught,
                limits(),
            ):
                warnings.simplefilter("always")
                action()
            ending = "warned" if caught else "taken"
        except InputError as error:
            ending = "refused"
            printed.write(str(error))
        except SystemExit as end:
            text = printed.getvalue()
            ending = "refused" if end.code else "taken"
            if end.code not in EXIT_CODES and not NO_RESOURCE.search(text):
                ending = f"exit code {end.code}"
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            ours = [f for f in frames if "/src/intnacl/" in f.filename] or frames
            place = f"{ours[-1].filename.rpartition('/intnacl/')[2]}:{ours[-1].lineno}"
            ending = f"{type(error).__name__} at {place}"
            printed.write("".join(traceback.format_exception(error)[-12:]))
        text = printed.getvalue() + "".join(str(one.message) for one in caught)
        foreign = [one for one in caught if not issubclass(one.category, InputWarning)]
        if foreign:
            ending = f"{foreign[0].category.__name__}: {str(foreign[0].message)[:60]}"
        elif ending not in ENDINGS:
            pass
        elif match := re.search(r"Traceback|weights_only=False|^\S+:\d+: \w+Warning.*", text, re.MULTILINE):
            ending += f" but it says {match[0]}"
        elif control := next((c for c in text if c not in "\n\t" and unicodedata.category(c) == "Cc"), None):
            ending += f" but it prints {control!r}"
        if self.canary.exists():
            ending = "code was run from data"
            self.canary.rmdir()
        self.counts[ending] += 1
        if ending not in ENDINGS:
            self.failures.setdefault(ending, []).append(f"{what[:1000]}\n{text[-1500:]}")

    def end(self, name: str) -> None:
        """Print the counts; fail with an example of every kind of failure."""
        print(f"\n{name}: {sum(self.counts.values()):,} inputs: {dict(self.counts.most_common())}")
        shown = [f"== {kind} ({len(some)} times)\n{some[0]}" for kind, some in self.failures.items()]
        if "HOSTILE_LOG" in os.environ:
            Path(os.environ["HOSTILE_LOG"] + name).write_text("\n".join(shown), errors="backslashreplace")
        assert not shown, [*self.failures]


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Bound the time and the memory of the block."""

    def ring(*_: object) -> None:
        raise TookTooLongError

    before = resource.getrlimit(resource.RLIMIT_AS)
    former = signal.signal(signal.SIGALRM, ring)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        resource.setrlimit(resource.RLIMIT_AS, before)


def program(*words: object) -> None:
    """Run the program's entry point in this process."""
    with patch.object(sys, "argv", ["intnacl", *map(str, words)]), warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.filterwarnings("ignore", "Cyclopts application invoked without tokens under")
        main()


def train(out: Path) -> None:
    """Train on digits in a new process, or resume; fourteen updates, a checkpoint every second."""
    with (out.parent / "output.txt").open("a") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        options = ("--epochs", 2, "--batch-size", 200, "--device", "cpu", "--set", "train.save_steps=2")
        program("pretrain", "--preset", "adv", *options, "train.monitor_epochs=1", "--out", out)


# ---- damage ------------------------------------------------------------------------------------------------


def damaged(draw: random.Random, data: bytes) -> bytes:
    """Return the bytes with some of them flipped, cut off, left out, overwritten, repeated or inserted."""
    content = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 3, 20))):
        start = draw.randrange(len(content) + 1)
        end = min(len(content), start + draw.choice((1, 4, 32, 512)))
        how = draw.randrange(7)
        if how == 0:
            del content[start:]
        elif how == 1:
            del content[start:end]
        elif how == 2:
            content[start:end] = bytes(end - start)
        elif how == 3:
            content[start:start] = content[start:end]
        elif how == 4:
            content[start:end] = draw.randbytes(end - start)
        elif how == 5 and content:
            content[start % len(content)] ^= 1 << draw.randrange(8)
        elif content:
            content[start % len(content)] = draw.choice(b'\x00\xff{}[]",:-019\n')
    return bytes(content)


def altered(draw: random.Random, value: Any) -> Any:
    """Return the value of a JSON or TOML file with some parts replaced, left out, renamed or added."""
    value = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        places = list(_places(value))
        if not places:
            return copy.deepcopy(draw.choice(VALUES))
        owner, key = draw.choice(places)
        how = draw.randrange(8)
        if how == 0:
            del owner[key]
        elif how == 1 and isinstance(owner, dict):
            owner[key[:-1] if draw.random() < 0.5 else f"{key}x"] = owner.pop(key)
        elif how == 2 and isinstance(owner, dict):
            owner[draw.choice(("", "x", "\0", "a.b", "step", "lr"))] = copy.deepcopy(draw.choice(VALUES))
        elif how == 3:
            other, name = draw.choice(places)
            owner[key] = copy.deepcopy(other[name])
        else:
            owner[key] = copy.deepcopy(draw.choice(VALUES))
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield value, key
        yield from _places(value[key])


def damaged_json(draw: random.Random, data: bytes) -> bytes:
    """Return the content of a JSON file, damaged as bytes or altered as a value."""
    how = draw.random()
    if how < 0.3:
        return damaged(draw, data)
    if how < 0.35:
        return draw.choice(DEEP).encode()
    try:
        return json.dumps(altered(draw, json.loads(data))).encode()
    except (ValueError, RecursionError):  # lines of JSON, or already damaged
        lines = data.splitlines() or [b"{}"]
        place = draw.randrange(len(lines))
        with contextlib.suppress(ValueError, RecursionError):
            lines[place] = json.dumps(altered(draw, json.loads(lines[place]))).encode()
        return b"\n".join(lines) + b"\n"


def misplace(draw: random.Random, path: Path) -> None:
    """Replace a file by something else: a folder, a pipe, a link to nowhere or to itself."""
    path.unlink()
    how = draw.randrange(6)
    if how == 0:
        path.mkdir()
    elif how == 1:
        os.mkfifo(path)
    elif how == 2:
        path.symlink_to("nowhere")
    elif how == 3:
        path.symlink_to(path.name)
    elif how == 4:
        path.symlink_to("/")
    else:
        path.symlink_to("/dev/zero")


def pickled(value: Any, protocol: int = 2) -> bytes:
    """Return the bytes of a pickle."""
    return pickle.dumps(value, protocol)
