"""Checkpoints: written aside, fsynced, renamed; the newest whole one is found, damaged ones are skipped.

A checkpoint is a folder `step-000001234` with `model.safetensors`, `optimizer.pt` (tensors only) and
`state.json`, which holds the step, what the trainer wants to know, and the checksums of all three.
"""

import hashlib
import io
import json
import shutil
import warnings
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from threading import Thread
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from intnacl.errors import InputWarning
from intnacl.files import disk_errors, new_folder

CHECKPOINTS = "checkpoints"  # their folder in a run's
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.pt", "state.json"
LOAD_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, UnpicklingError, SafetensorError)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything a run needs to go on: what is random is a function of the seed and the step."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    info: dict[str, Any]


class Writer:
    """Writes checkpoints below `folder` while training goes on, one at a time, and prunes old ones.

    As a context, it ends when the last one is on the disk. A second Ctrl-C does not wait for that: what is
    half-written then has no name yet, and goes with the next pruning.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self._last: tuple[Future[None], Thread] | None = None

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            self.wait()
        elif not isinstance(error, KeyboardInterrupt):
            try:
                self.wait()
            except Exception as of_disk:  # the block's own error goes first
                error.add_note(f"Besides, {of_disk}")

    def save(self, checkpoint: Checkpoint, best: int | None) -> None:
        """Begin to write a checkpoint as it is now: its tensors may change as soon as this returns."""
        self.wait()
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)  # now: whoever looks next sees that it has begun
        done: Future[None] = Future()
        arguments = (_copied(vars(checkpoint)), best, done)
        thread = Thread(target=self._write, args=arguments, name="checkpoint", daemon=True)
        thread.start()
        self._last = done, thread  # only now: nobody would end one whose thread did not start

    def check(self) -> None:
        """Raise if the last one could not be written; one that is still being written is no news."""
        if self._last and self._last[0].done():
            self.wait()

    def wait(self) -> None:
        """Until the last one is on the disk; raise if it could not be written."""
        if self._last:
            done, thread = self._last
            error = done.exception()  # an interrupt while it waits leaves the rest as it is
            thread.join()  # else Python might end while it still frees its tensors, which aborts the process
            self._last = None
            if error:
                raise error

    def _write(self, parts: dict[str, Any], best: int | None, done: "Future[None]") -> None:
        try:
            save(self.folder, Checkpoint(**parts))
            prune(self.folder, self.keep, best, parts["step"])
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)


def _copied(value: Any) -> Any:
    """The same in the machine's memory, whatever happens to the original: tensors in dicts of any depth."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    return {key: _copied(entry) for key, entry in value.items()} if isinstance(value, dict) else value


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint below `folder`, whole or not at all."""
    path = folder / f"step-{checkpoint.step:09d}"
    if path.exists() and not _damage(path):
        return path
    shutil.rmtree(path, ignore_errors=True)
    with disk_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        with new_folder(path) as partial:
            save_file({name: t.contiguous() for name, t in checkpoint.model.items()}, partial / MODEL)
            _save_optimizer(checkpoint.optimizer, partial / OPTIMIZER)
            sums = {name: _checksum(partial / name) for name in (MODEL, OPTIMIZER)}
            state = {"step": checkpoint.step, "checksums": sums, "info": checkpoint.info}
            (partial / STATE).write_text(json.dumps(state | {"seal": _seal(state)}, indent=1))
    return path


def _save_optimizer(state: dict[str, Any], path: Path) -> None:
    """By way of memory: where torch writes files itself, a full disk is an "unexpected pos" of its own."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    path.write_bytes(buffer.getbuffer())


def newest(folder: Path, device: torch.device | str = "cpu") -> Checkpoint | None:
    """The newest whole checkpoint below `folder`, or None; damaged ones are named in a warning."""
    for path in reversed(saved(folder)):
        reason = _damage(path)
        if reason is None:
            try:
                return load(path, device)
            except LOAD_ERRORS as error:
                reason = _describe(error)
        warnings.warn(f"checkpoint {path} is damaged ({reason}) and is skipped.", InputWarning, stacklevel=2)
    return None


def load(path: Path, device: torch.device | str = "cpu") -> Checkpoint:
    """Read a checkpoint. Only tensors and plain values are ever built from its bytes: no code of it runs."""
    state = json.loads((path / STATE).read_bytes())
    return Checkpoint(
        step=state["step"],
        model=load_file(path / MODEL, device=str(device)),
        optimizer=torch.load(path / OPTIMIZER, map_location=device, weights_only=True),
        info=state["info"],
    )


def prune(folder: Path, keep: int, best: int | None, step: int) -> None:
    """Delete all checkpoints up to `step` but the last `keep` and the one of step `best`.

    Those beyond `step` are damaged: they do not count. What a kill left half-written goes as well.
    """
    old = [path for path in saved(folder) if _step(path) <= step][:-keep]
    for path in [*(path for path in old if _step(path) != best), *folder.glob(".step-*")]:
        shutil.rmtree(path, ignore_errors=True)


def saved(folder: Path) -> list[Path]:
    """Checkpoints in the order of their steps."""
    return sorted(path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal())


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _checksum(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "blake2b").hexdigest()


def _seal(state: dict[str, Any]) -> str:
    """The checksum of the state itself."""
    body = json.dumps([state["step"], state["checksums"], state["info"]], sort_keys=True)
    return hashlib.blake2b(body.encode()).hexdigest()


def _damage(path: Path) -> str | None:
    """Why a checkpoint cannot be used, or None."""
    try:
        state = json.loads((path / STATE).read_bytes())
        if state["seal"] != _seal(state) or state["step"] != _step(path):
            return f"{STATE} does not match its checksum"
        for name in (MODEL, OPTIMIZER):
            if _checksum(path / name) != state["checksums"][name]:
                return f"{name} does not match its checksum"
    except LOAD_ERRORS as error:
        return _describe(error)
    return None


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
