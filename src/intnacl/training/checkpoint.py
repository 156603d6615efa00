"""Checkpoints: written atomically, and checked when they are read; damaged ones are skipped.

A checkpoint is a folder `step-000001234` with `model.safetensors`, `optimizer.pt` (tensors only) and
`state.json`, which holds the step, the state of the run besides its tensors, and the checksums of all three.
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
from typing import Any, NotRequired, TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from intnacl.errors import InputWarning
from intnacl.files import disk_errors, make_folder, new_folder, open_file, parse_json, read_file
from intnacl.models.weights import parse_tensors
from intnacl.training.run_state import RunInfo

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.pt", "state.json"
LOAD_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, UnpicklingError, SafetensorError)


class StepState(TypedDict):
    """The state that a `TrainStep` resumes from."""

    state: dict[int, Any]
    """The optimiser's state by parameter."""
    scaler: dict[str, float]
    """The state of the scaler of fp16 gradients."""
    online_probe: NotRequired[dict[str, Tensor]]
    """The online probe; missing without one, and in checkpoints of earlier versions."""
    average: NotRequired[dict[str, Tensor]]
    """The moving average of the model's floating tensors, if the run keeps one."""
    averaged: NotRequired[Tensor]
    """The number of updates in the average."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything that a run needs to resume: all randomness is a function of the seed and the step."""

    step: int
    model: dict[str, Tensor]
    optimizer: StepState
    info: RunInfo


class Writer:
    """Writes checkpoints below `folder` in the background, one at a time, and prunes old ones.

    As a context manager, it waits at the end until the last checkpoint is on the disk. A second Ctrl-C does
    not wait for that: a half-written checkpoint still has a temporary name, and the next pruning deletes it.
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
            except Exception as disk_error:  # the block's own error is raised
                error.add_note(f"In addition, {disk_error}")

    def save(self, checkpoint: Checkpoint, best: int | None) -> None:
        """Start to write a copy of a checkpoint: its tensors may change as soon as this returns.

        Old checkpoints are pruned afterwards, except for that of step `best`.
        """
        self.wait()
        make_folder(self.folder)  # now, since this folder marks a run that has saved
        copy = Checkpoint(**_in_memory(vars(checkpoint)))
        done: Future[None] = Future()

        def write() -> None:
            try:
                save(self.folder, copy)
                prune(self.folder, self.keep, best, copy.step)
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)

        thread = Thread(target=write, name="checkpoint", daemon=True)
        thread.start()
        self._last = done, thread  # set last: `wait` would never return for a thread that failed to start

    def check(self) -> None:
        """Raise if the last checkpoint could not be written; do not wait if it is still being written."""
        if self._last and self._last[0].done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk; raise if it could not be written."""
        if self._last:
            done, thread = self._last
            error = done.exception()  # an interrupt while this waits leaves `_last` as it is
            thread.join()  # Python would abort if it exited while the thread still freed tensors
            self._last = None
            if error:
                raise error


def _in_memory(value: Any) -> Any:
    """Copy tensors, in dicts of any depth, to the machine's memory, so that updates do not change them."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    return {key: _in_memory(entry) for key, entry in value.items()} if isinstance(value, dict) else value


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint below `folder`, completely or not at all."""
    path = step_folder(folder, checkpoint.step)
    if path.exists() and not _damage(path):
        return path
    shutil.rmtree(path, ignore_errors=True)
    with disk_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        with new_folder(path) as partial:
            save_file({name: t.contiguous() for name, t in checkpoint.model.items()}, partial / MODEL)
            # Through a buffer, since torch.save to a file reports a full disk as "unexpected pos".
            buffer = io.BytesIO()
            torch.save(checkpoint.optimizer, buffer)
            (partial / OPTIMIZER).write_bytes(buffer.getbuffer())
            sums = {name: _checksum(partial / name) for name in (MODEL, OPTIMIZER)}
            state = {"step": checkpoint.step, "checksums": sums, "info": checkpoint.info}
            (partial / STATE).write_text(json.dumps(state | {"seal": _seal(state)}, indent=1))
    return path


def step_folder(folder: Path, step: int) -> Path:
    """Return the path of a step's checkpoint below `folder`."""
    return folder / f"step-{step:09d}"


def newest(folder: Path, device: torch.device | str = "cpu") -> Checkpoint | None:
    """Return the newest intact checkpoint below `folder`, or None; warn of damaged ones."""
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
    """Read a checkpoint. Only tensors and plain values are built from its bytes: no code in it can run."""
    state = parse_json(read_file(path / STATE))
    _, model = parse_tensors(read_file(path / MODEL))
    return Checkpoint(
        step=state["step"],
        model={name: value.to(device) for name, value in model.items()},
        optimizer=torch.load(path / OPTIMIZER, map_location=device, weights_only=True),
        info=state["info"],
    )


def prune(folder: Path, keep: int, best: int | None, step: int) -> None:
    """Delete all checkpoints up to `step` except the last `keep` and that of step `best`.

    Checkpoints after `step` are damaged ones, which are not counted. Half-written ones, which a killed
    process left, are deleted as well.
    """
    old = [path for path in saved(folder) if _step(path) <= step][:-keep]
    for path in [*(path for path in old if _step(path) != best), *folder.glob(".step-*")]:
        shutil.rmtree(path, ignore_errors=True)


def saved(folder: Path) -> list[Path]:
    """List the checkpoints below `folder` in the order of their steps."""
    return sorted(path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal())


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _checksum(path: Path) -> str:
    with open_file(path) as handle:
        return hashlib.file_digest(handle, "blake2b").hexdigest()


def _seal(state: dict[str, Any]) -> str:
    """Return the checksum of the state itself."""
    body = json.dumps([state["step"], state["checksums"], state["info"]], sort_keys=True)
    return hashlib.blake2b(body.encode()).hexdigest()


def _damage(path: Path) -> str | None:
    """Return the reason why a checkpoint cannot be used, or None."""
    try:
        state = parse_json(read_file(path / STATE))
        if state["seal"] != _seal(state) or state["step"] != _step(path):
            return f"{STATE} does not match its checksum"
        for name in (MODEL, OPTIMIZER):
            if _checksum(path / name) != state["checksums"][name]:
                return f"{name} does not match its checksum"
    except LOAD_ERRORS as error:
        return _describe(error)
    return None


def _describe(error: Exception) -> str:
    if isinstance(error, UnpicklingError):  # torch's message recommends to run the code in the file
        return f"{OPTIMIZER} holds more than tensors and plain values"
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
