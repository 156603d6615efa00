"""The lock of a run: one holder, who is known, and whose death frees it."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from intnacl.errors import InputError, InputWarning
from intnacl.paper.lock import hold, holder

HOLD = """
import sys, time
from pathlib import Path
import pytest

from intnacl.errors import InputWarning
from intnacl.paper.lock import hold
with hold(Path(sys.argv[1]), "cpu") as mine:
    print(mine, flush=True)
    time.sleep(60)
"""


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    with hold(tmp_path / "run", "cpu") as first:
        assert first
        with hold(tmp_path / "run", "cpu") as second:
            assert not second
        assert holder(tmp_path / "run") is not None
    with hold(tmp_path / "run", "cpu") as third:
        assert third


def test_the_holder_is_known(tmp_path: Path) -> None:
    assert holder(tmp_path / "run") is None
    with hold(tmp_path / "run", "cpu"):
        who = holder(tmp_path / "run")
        assert who is not None
        assert (who["pid"], who["device"]) == (os.getpid(), "cpu")
        assert abs(who["since"] - time.time()) < 60
    assert holder(tmp_path / "run") is None


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def _full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.write", _full)
    with pytest.raises(InputError, match=r"lock could not be written: No space left"), hold(tmp_path, "cpu"):
        pass


def test_sigkill_frees_it(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    with hold(tmp_path, "cpu") as mine:
        assert not mine
    who = holder(tmp_path)
    assert who is not None
    assert who["pid"] == other.pid
    os.kill(other.pid, signal.SIGKILL)
    other.communicate()
    assert holder(tmp_path) is None  # its name is still written there
    with hold(tmp_path, "cpu") as mine:
        assert mine


def test_a_file_system_without_locks_warns_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(InputWarning, match="one process at a time"), hold(tmp_path, "cpu") as mine:
        assert mine
