"""Memory that is freed stays with the process."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from intnacl.training.heap import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(40):
    if step == 20:  # the first tensors still find no place where all of them fit
        before = faults()
    torch.ones(2**24)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_pages_are_fetched_once_and_not_for_each_tensor() -> None:
    page_faults = {
        name: int(subprocess.check_output([sys.executable, "-c", FAULTS, name])) for name in ("keep", "leave")
    }
    assert page_faults["keep"] < page_faults["leave"] / 10
