"""Weights & Biases offline: an environment without network and home, and readers of its files."""

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BLOCK, HEADER = 2**15, 7  # of LevelDB's log format, in which W&B writes its records


@contextmanager
def offline(folder: Path) -> Iterator[dict[str, str]]:
    """Yield environment variables; at the end, check that W&B used neither the network nor the home."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        yield {
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), address),
            "HOME": str(home),
            "WANDB_MODE": "offline",
            "WANDB_ERROR_REPORTING": "false",  # otherwise it looks up an address at every start
            "WANDB_CACHE_DIR": str(folder / "cache"),
        }
        proxy.setblocking(False)
        try:
            proxy.accept()
            raise AssertionError("W&B called the network")
        except BlockingIOError:
            pass
    assert list(home.rglob("*wandb*")) == []  # caches of other packages are allowed


def records(file: Path) -> Iterator[Any]:
    """Yield the records of a .wandb file."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, record = file.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if (left := BLOCK - at % BLOCK) < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        record += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # whole, or the last piece
            yield Record.FromString(record)
            record = b""


def read_run(file: Path) -> tuple[str, dict[str, Any], dict[int, dict[str, Any]], dict[str, Any]]:
    """Return the run's id and settings, its figures by step, and its summary."""
    name, settings, history, summary = "", {}, {}, {}
    for record in records(file):
        if record.HasField("run"):
            name, settings = record.run.run_id, _values(record.run.config.update)
        if record.HasField("history"):
            history[record.history.step.num] = _values(record.history.item)
        if record.HasField("summary"):
            summary |= _values(record.summary.update)
    return name, settings, history, summary


def _values(items: Any) -> dict[str, Any]:
    """Return our values; those of W&B begin with an underscore."""
    named = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
    return {key: value for key, value in named.items() if not key.startswith("_")}


def runs(folder: Path) -> list[Path]:
    """Return the .wandb files of a run's folder, the oldest first."""
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns)
