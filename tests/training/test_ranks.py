"""Ranks: two equal one process on the joined batch; devices and lost ranks are named."""

import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from two_ranks import STEPS, main

from intnacl.data.index import Index
from intnacl.errors import LostRankError
from intnacl.training.journal import records
from intnacl.training.ranks import Ranks, any_rank, barrier, largest, mean_over_ranks, pick_device, ranks
from mistakes import must_refuse
from shards import write_shards


def train_on_two(folder: Path, *settings: str) -> list[dict[str, torch.Tensor]]:
    """The weights that each of two processes ends with."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("two_ranks.py"))]
    places = ([str(rank), "2", str(folder)] for rank in range(2))
    processes = [subprocess.Popen([*command, *place, *settings], env=environment) for place in places]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize(
    ("preset", "norm", "sync", "updates"),
    [
        ("intnacl", "none", "", "short"),  # without batch norm: adversarial views and mixing included
        ("intnacl", "joint", "sync", "long"),  # with synchronised statistics
        ("distill", "joint", "sync", "long"),  # its perturbed weights included
        pytest.param("intnacl", "per_view", "sync", "short", marks=pytest.mark.slow),
        pytest.param("simclr", "none", "", "short", marks=pytest.mark.slow),
        pytest.param("adv", "none", "", "long", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_equal_one_process_with_the_joined_batch(tmp_path, preset, norm, sync, updates):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first, second = train_on_two(tmp_path / "two", preset, norm, sync, updates)
    main(0, 1, tmp_path / "one", preset, norm, bool(sync), updates)
    one = torch.load(tmp_path / "one" / "rank0.pt", weights_only=True)
    # Once an update, however many batches it has.
    assert [int(weights.pop("exchanges")) for weights in (one, first, second)] == [0, STEPS, STEPS]
    assert next(iter(one.values())).dtype == torch.float64
    for weights in (first, second):
        torch.testing.assert_close(weights, one, rtol=1e-9, atol=1e-9)
    logs = (records(tmp_path / name / "run" / "log.jsonl") for name in ("one", "two"))
    named = ("loss", "clean", "robust") if preset == "distill" else ("loss", "probe_train")
    a, b = ([row[name] for name in named for row in log] for log in map(list, logs))
    assert len(a) == len(named) * (10 if updates == "long" else 5)
    assert a == pytest.approx(b, rel=1e-6)  # the ranks' mean, not the first one's


def test_two_ranks_stream_what_one_process_streams(tmp_path, monkeypatch):
    write_shards(tmp_path, 64, size=(15, 11))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    settings = "intnacl", "none", "", "streamed"
    ranks = train_on_two(tmp_path / "two", *settings)
    monkeypatch.setattr(Index, "read", Index.read)  # to have it back afterwards
    main(0, 1, tmp_path / "one", "intnacl", "none", False, "streamed")
    one = torch.load(tmp_path / "one" / "rank0.pt", weights_only=True)
    for weights in ranks:
        weights.pop("exchanges")
        torch.testing.assert_close(weights, {key: one[key] for key in weights}, rtol=1e-9, atol=1e-9)
    whole, *seen = (
        torch.load(tmp_path / place, weights_only=True)
        for place in ("one/seen0.pt", "two/seen0.pt", "two/seen1.pt")
    )
    assert whole["crops"][0].shape == (2, 16, 3, 8, 8)
    assert len(whole["decoded"]) == 16 * STEPS
    for rank in seen:
        assert len(rank["rows"]) == 8 + 2  # and the two mixing partners of its first rows
        assert len(rank["decoded"]) == 10 * STEPS
        assert all(
            torch.equal(part, all_rows[:, rank["rows"]])
            for part, all_rows in zip(rank["crops"], whole["crops"], strict=True)
        )


def test_one_process_needs_no_group(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    values = torch.rand(2)
    with ranks("cpu") as here:
        assert here == Ranks(0, 1, torch.device("cpu"))
        assert here.main
        assert not torch.distributed.is_initialized()
        assert (any_rank(True, here), any_rank(False, here), largest(-3, here)) == (True, False, -3)
        assert mean_over_ranks(values, here) is values
        barrier(here)


def test_devices_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu:0") == torch.device("cpu")
    for name, message in (
        ("cuda", "'cuda': this machine has no GPU that torch can use"),
        ("gpu", "'gpu' is unknown: take auto, cpu, cuda"),
        ("cpu:7", "'cpu:7': there is one device for all cores: take cpu"),
        ("meta", "'meta' cannot be trained on here: take auto, cpu"),
        ("xla", "'xla' cannot be trained on here: take auto, cpu"),
    ):
        must_refuse(pick_device, name, f"device={message}")


def test_each_rank_uses_its_own_gpu_and_a_missing_one_is_named(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert pick_device("auto", 3) == torch.device("cuda", 3)
    assert pick_device("cuda:1", 0) == torch.device("cuda", 1)
    assert chosen == [torch.device("cuda", 3), torch.device("cuda", 1)]
    must_refuse(pick_device, "cuda", 4, r"device='cuda:4': .* has 4 GPUs, cuda:0 to cuda:3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert pick_device("cuda", 1) == torch.device("cuda", 1)
    must_refuse(pick_device, "cuda:1", 0, r"device='cuda:1' is one GPU for all ranks.*CUDA_VISIBLE_DEVICES")


@pytest.fixture
def rank_3_of_4(monkeypatch):
    """This process has the settings of one of four ranks, but never joins the others."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    store = SimpleNamespace(set_timeout=lambda _: None)
    monkeypatch.setattr("intnacl.training.ranks.rendezvous", lambda _: iter([(store, 3, 4)]))
    monkeypatch.setattr("torch.distributed.PrefixStore", lambda prefix, store: store)
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *_, **__: None)


NCCL = "NCCL error in: ProcessGroupNCCL.cpp:317, "


LOST = [
    RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"),
    RuntimeError("[gloo/transport/tcp/pair.cc:589] Read error [::1]:25266: Connection reset by peer"),
    RuntimeError("Timed out waiting 600000ms for recv operation to complete"),
    dist.DistBackendError(NCCL + "remote process exited or there was a network error"),
    dist.DistBackendError(NCCL + "unhandled system error. Last error: Connect to ip failed: Broken pipe"),
    dist.DistBackendError("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)"),
    dist.DistStoreError("wait timeout after 600000ms, keys: /default_pg/0"),
    dist.DistNetworkError("The client socket has failed to connect to any network address of (a, 29500)."),
]
OTHERS = [
    RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
    RuntimeError("CUDA error: peer access is not supported between these two devices"),
    RuntimeError("Tensors must be CUDA and dense for NCCL"),
    dist.DistBackendError(NCCL + "invalid usage. Last error: Duplicate GPU detected"),
    dist.DistBackendError(NCCL + "unhandled cuda error. Last error: Cuda failure 2 'out of memory'"),
    dist.DistNetworkError("The server socket has failed to listen on any local network address: EADDRINUSE"),
    torch.OutOfMemoryError("CUDA out of memory while NCCL timed out waiting for its peer"),
    NotImplementedError("peer: Connection closed by peer is not implemented"),
]


@pytest.mark.usefixtures("rank_3_of_4")
@pytest.mark.parametrize("error", [*LOST, *OTHERS], ids=str)
def test_a_lost_connection_is_named_and_other_errors_of_a_rank_are_unchanged(error):
    """The other errors would recur after every restart."""
    with pytest.raises(RuntimeError) as caught, ranks("cpu"):
        raise error
    if error in LOST:
        assert isinstance(caught.value, LostRankError)
        assert re.search(r"rank 3 lost contact.*--max-restarts", str(caught.value))
    else:
        assert caught.value is error


@pytest.mark.usefixtures("rank_3_of_4")
def test_a_signal_while_the_process_group_ends_does_not_suppress_the_message(monkeypatch):
    deadly: list[int] = []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: os.kill(os.getpid(), signal.SIGTERM))
    former = signal.signal(signal.SIGTERM, lambda number, frame: deadly.append(number))
    try:
        with pytest.raises(LostRankError, match="rank 3 lost contact"), ranks("cpu"):
            raise RuntimeError("Connection closed by peer")
    finally:
        signal.signal(signal.SIGTERM, former)
    assert not deadly


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
def test_memory_pages_are_allocated_once_rather_than_for_each_tensor():
    page_faults = {
        name: int(subprocess.check_output([sys.executable, "-c", FAULTS, name])) for name in ("keep", "leave")
    }
    assert page_faults["keep"] < page_faults["leave"] / 10
