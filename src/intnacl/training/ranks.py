"""Ranks: start and end under `torchrun`, devices, DDP, and values shared by all ranks."""

import ctypes
import gc
import inspect
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from intnacl.errors import InputError, LostRankError
from intnacl.training.stop import Stop

TIMEOUT = timedelta(minutes=10)
# Messages of Gloo and NCCL when another rank is gone or does not answer.
LOST = re.compile(
    r"connection (was )?(closed|reset|refused|aborted|timed out)|broken pipe|socket (closed|timeout)"
    r"|timed out (waiting|after)|connect\w*(\(\))? timed out|remote process exited|ncclRemoteError"
    r"|collective operation timeout",
    re.IGNORECASE,
)
# Parameters of glibc's mallopt, from its malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4


@dataclass(frozen=True)
class Ranks:
    """This process's rank and device, and the number of ranks in the run."""

    rank: int
    world: int
    device: torch.device

    @property
    def main(self) -> bool:
        """True for the process that writes files and prints."""
        return self.rank == 0


@contextmanager
def ranks(device: str = "auto") -> Iterator[Ranks]:
    """Join the ranks that `torchrun` started, if any; the process group is destroyed after the block."""
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    here = pick_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if world == 1:
        yield Ranks(0, 1, here)
        return
    try:
        _join("nccl" if here.type == "cuda" else "gloo")
        yield Ranks(rank, world, here)
    except RuntimeError as error:
        if not is_lost_contact(error):
            raise
        raise LostRankError(
            f"rank {rank} lost contact with another rank, which died or cannot be reached. Work since the "
            "last checkpoint is lost; run the same command again (or torchrun with --max-restarts) to resume."
        ) from error
    finally:
        if dist.is_initialized():
            with Stop():  # when a rank dies, torchrun's SIGTERM must not cut the other ranks' messages short
                gc.collect()  # frees DDP, which would keep the group's threads alive
                dist.destroy_process_group()


def is_lost_contact(error: RuntimeError) -> bool:
    """True if another rank, or the store where ranks meet, is gone or does not answer.

    False for an error of this rank itself, even if NCCL, its GPU or a busy port causes it: it would recur
    after every restart.
    """
    if isinstance(error, dist.DistNetworkError | dist.DistStoreError):
        return "failed to listen" not in str(error)
    # Gloo raises plain RuntimeErrors, NCCL DistBackendErrors; other subclasses have other causes.
    return type(error) in (RuntimeError, dist.DistBackendError) and bool(LOST.search(str(error)))


def _join(backend: str) -> None:
    """Join the process group, with a key prefix of this attempt in the store.

    After a restart, torchrun's store may still hold the addresses of ranks that died.
    """
    store, rank, world = next(iter(rendezvous("env://")))
    store.set_timeout(TIMEOUT)
    attempt = dist.PrefixStore(  # type: ignore[attr-defined]
        f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store
    )
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=world, timeout=TIMEOUT)


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device of this name: `auto` is this rank's GPU if there is one, else the CPU.

    This also prepares the process: the GPU becomes torch's current one; on a CPU, freed memory is kept.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = read_device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise InputError(
                f"device={name!r}: this machine has no GPU that torch can use; take --device cpu."
            )
        if device.index is not None and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
            raise InputError(
                f"device={name!r} is one GPU for all ranks of this machine: take --device cuda, and choose "
                "GPUs by CUDA_VISIBLE_DEVICES."
            )
        index = local_rank if device.index is None else device.index
        count = torch.cuda.device_count()
        if index >= count:
            raise InputError(
                f"device='cuda:{index}': this machine has {count} GPUs, cuda:0 to cuda:{count - 1}."
            )
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
        return device
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:  # such as mps on Linux, or meta, which holds no numbers
        raise InputError(f"device={name!r} cannot be trained on here: take auto, cpu, cuda …") from error
    if device.type == "cpu" and sys.platform == "linux":
        # A step frees as much as it allocates. By default glibc returns large tensors to Linux and asks for
        # them again, and Linux fills each page with zeros before the first write. So the process keeps what
        # it frees. C libraries other than glibc have no mallopt and are left as they are.
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_MMAP_MAX, 0)  # large pieces come from the heap too
            mallopt(M_TRIM_THRESHOLD, -1)  # and the heap never shrinks
    return device


def read_device(name: str) -> torch.device:
    """Return torch's device of this name, even if this machine does not have it."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError):
        raise InputError(f"device={name!r} is unknown: take auto, cpu, cuda, cuda:1 …") from None
    if device.type == "cpu" and device.index:
        raise InputError(f"device={name!r}: there is one device for all cores: take cpu.")
    return torch.device("cpu") if device.type == "cpu" else device


def wrap_ddp(module: nn.Module, device: torch.device) -> nn.Module:
    """Wrap a module for DDP; batch norm statistics stay each rank's own unless they are synchronised."""
    ids = [device.index] if device.type == "cuda" else None
    ddp: Any = nn.parallel.DistributedDataParallel
    new = "forward_sync_buffers" in inspect.signature(ddp).parameters  # the older name is deprecated
    name = "forward_sync_buffers" if new else "broadcast_buffers"
    wrapped: nn.Module = ddp(module, device_ids=ids, **{name: False})
    return wrapped


def largest(number: int, here: Ranks) -> int:
    """Return the largest of the ranks' numbers, on every rank."""
    if here.world == 1:
        return number
    value = torch.tensor(number, device=here.device)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return int(value.item())


def any_rank(flag: bool, here: Ranks) -> bool:
    """True if the flag is set on any rank."""
    return bool(largest(int(flag), here))


def mean_over_ranks(values: Tensor, here: Ranks) -> Tensor:
    """Return the mean of each value over ranks; if it is not finite on one rank, neither is the mean."""
    if here.world == 1:
        return values
    total = values.clone()
    dist.all_reduce(total)
    return total / here.world


def union(found: dict[str, str], here: Ranks) -> dict[str, str]:
    """Return the entries of all ranks' dicts, sorted by key."""
    several: list[dict[str, str]] = [found] * here.world
    if here.world > 1:
        dist.all_gather_object(several, found)
    return dict(sorted((key, value) for some in several for key, value in some.items()))


def barrier(here: Ranks) -> None:
    """Wait until every rank has called this."""
    any_rank(False, here)
