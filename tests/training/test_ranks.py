"""Ranks: two equal one process on the joined batch; devices and lost ranks are named."""

import json
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from two_ranks import STEPS, main

from intnacl.errors import InputError, LostRankError
from intnacl.training.ranks import Ranks, any_rank, barrier, largest, mean_over_ranks, pick_device, ranks

HERE = Path(__file__).parent


def train_on_two(folder: Path, *settings: str) -> list[dict[str, torch.Tensor]]:
    """The weights that each of two processes ends with."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-W", "error", str(HERE / "two_ranks.py")]
    processes = [
        subprocess.Popen([*command, str(rank), "2", str(folder), *settings], env=environment)
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize(
    ("preset", "norm", "sync", "updates"),
    [
        ("intnacl", "none", "", "short"),  # without batch norm: adversarial views and mixing included
        ("intnacl", "joint", "sync", "long"),  # with synchronised statistics
        pytest.param("intnacl", "per_view", "sync", "short", marks=pytest.mark.slow),
        pytest.param("simclr", "none", "", "short", marks=pytest.mark.slow),
        pytest.param("adv", "none", "", "long", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_equal_one_process_with_the_joined_batch(
    tmp_path: Path, preset: str, norm: str, sync: str, updates: str
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first, second = train_on_two(tmp_path / "two", preset, norm, sync, updates)
    main(0, 1, tmp_path / "one", preset, norm, bool(sync), updates)
    one = torch.load(tmp_path / "one" / "rank0.pt", weights_only=True)
    assert one.keys() == first.keys()
    # Once an update, however many batches it has.
    assert [int(weights.pop("exchanges")) for weights in (one, first, second)] == [0, STEPS, STEPS]
    start = one["head.0.weight"]
    for name in one:
        torch.testing.assert_close(first[name], one[name], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(second[name], one[name], rtol=1e-9, atol=1e-9)
    assert start.dtype == torch.float64
    logs = [(tmp_path / name / "run" / "log.jsonl").read_text().splitlines() for name in ("one", "two")]
    assert len(logs[0]) == len(logs[1]) == (10 if updates == "long" else 5)
    for one_line, two_line in zip(*logs, strict=True):
        a, b = (json.loads(line) for line in (one_line, two_line))
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-6)  # the ranks' mean, not the first one's


def test_one_process_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with ranks("cpu") as here:
        assert here == Ranks(0, 1, torch.device("cpu"))
        assert here.main
        assert not torch.distributed.is_initialized()
        assert any_rank(True, here)
        assert not any_rank(False, here)
        assert largest(-3, here) == -3
        values = torch.rand(2)
        assert mean_over_ranks(values, here) is values
        barrier(here)


def test_devices_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(InputError, match="device='cuda': this machine has no GPU that torch can use"):
        pick_device("cuda")
    with pytest.raises(InputError, match="device='gpu' is unknown: take auto, cpu, cuda"):
        pick_device("gpu")
    for name in ("meta", "xla"):
        with pytest.raises(InputError, match=f"device='{name}' cannot be trained on here: take auto, cpu"):
            pick_device(name)


def test_each_rank_takes_its_own_gpu_and_a_missing_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert pick_device("auto", 3) == torch.device("cuda", 3)
    assert pick_device("cuda:1", 0) == torch.device("cuda", 1)
    assert chosen == [torch.device("cuda", 3), torch.device("cuda", 1)]
    with pytest.raises(InputError, match=r"device='cuda:4': .* has 4 GPUs, cuda:0 to cuda:3"):
        pick_device("cuda", 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert pick_device("cuda", 1) == torch.device("cuda", 1)
    with pytest.raises(InputError, match=r"device='cuda:1' is one GPU for all ranks.*CUDA_VISIBLE_DEVICES"):
        pick_device("cuda:1", 0)


# ---- lost contact ----------------------------------------------------------------------------------------


@pytest.fixture
def rank_3_of_4(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process takes itself for one of four ranks, which it never meets."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    store = SimpleNamespace(set_timeout=lambda _: None)
    monkeypatch.setattr("intnacl.training.ranks.rendezvous", lambda _: iter([(store, 3, 4)]))
    monkeypatch.setattr("torch.distributed.PrefixStore", lambda prefix, store: store)
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *_, **__: None)


NCCL = "NCCL error in: ProcessGroupNCCL.cpp:317, "


@pytest.mark.usefixtures("rank_3_of_4")
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"),
        RuntimeError("[gloo/transport/tcp/pair.cc:589] Read error [::1]:25266: Connection reset by peer"),
        RuntimeError("Timed out waiting 600000ms for recv operation to complete"),
        dist.DistBackendError(NCCL + "remote process exited or there was a network error"),
        dist.DistBackendError(NCCL + "unhandled system error. Last error: Connect to ip failed: Broken pipe"),
        dist.DistBackendError("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)"),
        dist.DistStoreError("wait timeout after 600000ms, keys: /default_pg/0"),
        dist.DistNetworkError(
            "The client socket has failed to connect to any network address of (a, 29500)."
        ),
    ],
    ids=str,
)
def test_a_lost_connection_is_named(error: RuntimeError) -> None:
    with pytest.raises(LostRankError, match=r"rank 3 lost contact.*--max-restarts"), ranks("cpu"):
        raise error


@pytest.mark.usefixtures("rank_3_of_4")
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
        RuntimeError("CUDA error: peer access is not supported between these two devices"),
        RuntimeError("Tensors must be CUDA and dense for NCCL"),
        dist.DistBackendError(NCCL + "invalid usage. Last error: Duplicate GPU detected"),
        dist.DistBackendError(NCCL + "unhandled cuda error. Last error: Cuda failure 2 'out of memory'"),
        dist.DistNetworkError(
            "The server socket has failed to listen on any local network address: EADDRINUSE"
        ),
        torch.OutOfMemoryError("CUDA out of memory while NCCL timed out waiting for its peer"),
        NotImplementedError("peer: Connection closed by peer is not implemented"),
    ],
    ids=str,
)
def test_other_errors_of_a_rank_stay_as_they_are(error: RuntimeError) -> None:
    """A restart would meet them again, for ever."""
    with pytest.raises(type(error)) as caught, ranks("cpu"):
        raise error
    assert caught.value is error


@pytest.mark.usefixtures("rank_3_of_4")
def test_a_signal_while_the_group_ends_does_not_cut_the_message_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deadly: list[int] = []
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr(
        "torch.distributed.destroy_process_group", lambda: os.kill(os.getpid(), signal.SIGTERM)
    )
    former = signal.signal(signal.SIGTERM, lambda number, frame: deadly.append(number))
    try:
        with pytest.raises(LostRankError, match="rank 3 lost contact"), ranks("cpu"):
            raise RuntimeError("Connection closed by peer")
    finally:
        signal.signal(signal.SIGTERM, former)
    assert not deadly


# ---- memory ----------------------------------------------------------------------------------------------

FAULTS = """
import resource, sys, torch
from intnacl.training.ranks import pick_device
if sys.argv[1] == "keep":
    pick_device("cpu")
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
