"""The command line in a process of its own, as a user meets it."""

import os
import subprocess
import sys


def intnacl(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `python -m intnacl` and keep what it prints."""
    command = [sys.executable, "-m", "intnacl", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
