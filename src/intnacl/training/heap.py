"""Memory of a process that computes on a CPU."""

import ctypes
import sys

# Parameters of glibc's mallopt, from its malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Let the process keep the memory that it frees, and use it again, instead of returning it to Linux.

    A step frees as much as it allocates. By default glibc asks Linux for every large tensor anew, and Linux
    fills each of its pages with zeros before the first write. Without glibc this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)  # large pieces come from the heap too
        mallopt(M_TRIM_THRESHOLD, -1)  # and the heap never shrinks
