"""The command line as a user meets it."""

import subprocess
import sys


def intnacl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m intnacl` and keep what it prints."""
    return subprocess.run(
        [sys.executable, "-m", "intnacl", *arguments], capture_output=True, text=True, timeout=240
    )


def test_help_names_the_program() -> None:
    result = intnacl("--help")
    assert result.returncode == 0
    assert "intnacl" in result.stdout
