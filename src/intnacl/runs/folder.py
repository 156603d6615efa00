"""A run's folder: the names of its files, its lock, and the state of the run.

Everything that is known about a run lies in its folder, so that any number of processes and machines can read
it, and the command that started a run also resumes it.
"""

import json
import os
import secrets
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from intnacl.data.datasets import local_name
from intnacl.errors import InputError, InputWarning
from intnacl.files import disk_errors, lock, make_folder, parse_json, read_file, read_json, write_file
from intnacl.models.shipped import is_shipped, pretrained
from intnacl.models.weights import (
    BEST_ENCODER,
    ENCODER,
    PROJECTION,
    checksum_file,
    has_encoder,
    read_encoder,
)
from intnacl.runs.config import VERSION, RunConfig, differences, from_dict, loss_name, to_dict
from intnacl.runs.result import Result
from intnacl.training.checkpoint import saved

State = Literal["empty", "begun", "trained", "finished", "record"]
LOCK_PATIENCE_S = 0.1  # wait for a lock: processes that only look whether it is free hold it for less


class Holder(TypedDict, total=False):
    """The process that works in a folder, as noted in `holder.json`."""

    host: str
    device: str
    pid: int
    since: float
    """Seconds since 1970."""


class RunFolder:
    """A run on disk. The attributes are the paths of its files, which need not exist."""

    def __init__(self, path: str | Path) -> None:
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"path={path!r} is of type {type(path).__name__}: give the folder of a run.")
        self.path = path = Path(path)
        self.config = path / "config.json"
        self.log = path / "log.jsonl"
        self.checkpoints = path / "checkpoints"
        self.id = path / "id"
        """The run's name among all runs, for trackers."""
        self.curves = path / "curves.png"
        self.encoder = path / ENCODER
        self.best_encoder = path / BEST_ENCODER
        self.teacher = path / "teacher"
        """The run of the teacher that a run of objective=distill trained for itself."""
        self.head = path / "head.safetensors"
        """The linear layer of a fine-tuned encoder."""
        self.projection = path / PROJECTION
        """The projection head of a contrastive run."""
        self.pseudo_labels = path / "pseudo-labels.safetensors"
        """The pseudo-labels of a run with `finetune.clusters`."""
        self.measurements = path / "parts"
        self.result = path / "result.json"
        self.page = path / "report.html"
        self.lock = path / "lock"
        self.signature = path / "holder.json"
        """The holder of the lock. The file may outlive a process that was killed."""
        self.shared = path / "shared"
        """A mark that other runs used the device while this one was trained."""
        self.output = path / "output.txt"
        """The printed lines of a run of `intnacl reproduce`."""
        self.failure = path / "failure.json"
        """The notes about failures of a run of `intnacl reproduce`."""
        self._held = False

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def __str__(self) -> str:
        return str(self.path)

    def __fspath__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def classifier(self, dataset: str, probe: str = "") -> Path:
        """The linear layer of a probe; `probe` is the digest of settings other than the run's own."""
        mark = f"-{probe}" if probe else ""
        return self.path / f"probe-{file_name(dataset)}{mark}.safetensors"

    def examples(self, dataset: str) -> Path:
        """Test images before and after an attack."""
        return self.path / f"examples-{file_name(dataset)}.safetensors"

    def picture(self, kind: str, dataset: str) -> Path:
        """A drawing of measurements on a data set, such as "robustness"."""
        return self.path / f"{kind}-{file_name(dataset)}.png"

    def features(self, dataset: str, split: str) -> Path:
        """Features of a split for other programs."""
        return self.path / f"features-{file_name(dataset)}-{split}.npz"

    def predictions(self, pictures: Path) -> Path:
        """The classes of a folder's pictures."""
        return self.path / f"predictions-{file_name(f'folder:{pictures.absolute()}')}.csv"

    def trained_files(self) -> list[Path]:
        """Return the files that training has written; the encoder, which marks a trained run, comes last."""
        encoders = [
            checksum_file(self.best_encoder),
            self.best_encoder,
            checksum_file(self.encoder),
            self.encoder,
        ]
        pseudo = self.pseudo_labels, checksum_file(self.pseudo_labels)
        beside = self.log, self.curves, self.head, self.projection, *pseudo
        return [file for file in (*beside, *encoders) if file.exists()]

    def measured_files(self) -> list[Path]:
        """Return the files that measuring has written, which are valid for every run with this encoder."""
        patterns = ("parts/*.json", "probe-*.safetensors", "examples-*.safetensors")
        return [file for pattern in patterns for file in self.path.glob(pattern)]

    def copy_files(self, other: "RunFolder", *, measured: bool = True) -> None:
        """Copy the files of training and, if `measured`, those of measuring.

        The encoder comes last, because it marks the other run as trained. One kept in pieces is joined.
        """
        for file in (*(self.measured_files() if measured else []), *self.trained_files()):
            write_file(other / str(file.relative_to(self.path)), read_file(file))
        if not self.encoder.exists():
            write_file(other.encoder, read_encoder(self.encoder))

    def copy(self, out: Path) -> "RunFolder":
        """Return a copy of the trained run and its measurements in `out`, which is made if it is missing."""
        other = RunFolder(out)
        other.begin(self.read_config())
        if not other.encoder.exists():
            self.copy_files(other)
        elif read_file(other.encoder) != read_encoder(self.encoder):
            raise InputError(f"{out} has another encoder than {self.path}: take another --out.")
        return other

    def check_writable(self, remedy: str = "") -> None:
        """Raise if this is the folder of an encoder that ships with the package, where nothing is written."""
        if is_shipped(self.path):
            name = self.path.name
            usual = (
                f"give --out FOLDER, in Python open_run({name!r}, out=FOLDER), for a copy of {name} to which "
                "measurements are written."
            )
            raise InputError(f"{name} ships with the package, where nothing is written: {remedy or usual}")

    # ---- state -----------------------------------------------------------------------------------------

    def state(self) -> State:
        """Return the run's state; "record" is a finished run whose weights are gone."""
        if has_encoder(self.encoder):
            return "finished" if self.is_finished() else "trained"
        if saved(self.checkpoints):
            return "begun"
        if self.result.exists():
            return "record"
        return "begun" if self.config.exists() else "empty"

    def is_finished(self) -> bool:
        """Return True if the run has its result; a damaged result does not count, and is written again."""
        try:
            facts = self.result.stat()
        except OSError:
            return False
        return _is_whole(self.result, facts.st_mtime_ns, facts.st_size)

    def read_result(self) -> Result | None:
        """Return the content of `result.json`; None if it is missing or damaged."""
        return cast(Result | None, read_json(self.result, Result))

    def read_config(self) -> RunConfig:
        """Return the run's configuration."""
        return self.read_versioned_config()[0]

    def read_versioned_config(self) -> tuple[RunConfig, int]:
        """Return the run's configuration, and the version of its file."""
        if self.path.is_file():
            raise InputError(f"{self.path} is a file: give the folder of a run.")
        if not self.config.exists():
            raise InputError(
                f"{self.path} is not a run folder: it has no {self.config.name}. `intnacl pretrain --out "
                f"{self.path}` makes one; the package ships with {', '.join(pretrained())}."
            )
        try:
            values = parse_json(read_file(self.config))
            version = values.get("version", 1)
            if version not in range(1, VERSION + 1):
                raise ValueError(f"version={version!r} is unknown to this version of intnacl")
            return from_dict({key: value for key, value in values.items() if key != "version"}), version
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(f"{self.config} is damaged, or of another version: {error}") from error

    def require_encoder(self) -> None:
        """Raise unless the run has a trained encoder."""
        state = self.state()
        if state == "begun" and saved(self.checkpoints):
            raise InputError(
                f"{self.path} is not fully trained yet: repeat its `intnacl pretrain` or `intnacl run` "
                "command to resume it."
            )
        if state == "record":
            raise InputError(
                f"{self.path} is a record without weights: repeat its run with another --out, and use that."
            )
        if state in ("empty", "begun"):
            raise InputError(
                f"{self.path} has no {ENCODER}: train it first, `intnacl pretrain --out {self.path} …`."
            )

    def check_measured_encoder(self, sha256: str) -> None:
        """Raise if the result is of another encoder; only needed if an earlier version wrote no checksum."""
        result = None if checksum_file(self.encoder).exists() else self.read_result()
        if result is not None and result["protocol"].get("encoder_sha256", sha256) != sha256:
            raise InputError(
                f"{self.encoder} is not the encoder of {self.result}: its SHA-256 differs, so it is damaged "
                "or was replaced. Restore it from a copy, or delete the result to measure again."
            )

    # ---- work ------------------------------------------------------------------------------------------

    def begin(self, config: RunConfig) -> bool:
        """Write the configuration of a new run (True), or check that the run here has the same (False)."""
        if self.config.exists():
            changed = differences(self.read_config(), config)
            if not changed:
                return False
            remedy = f"Choose another --out, such as {self.path}-2, or use the settings of the run."
            if self.encoder.exists() and all(line.startswith(("evaluation.", "probe.")) for line in changed):
                remedy = (
                    f"To measure more on its encoder: `intnacl probe {self.path} …`, "
                    f"`intnacl attack {self.path} …`. For a new run, choose another --out."
                )
            listed = (f"  {line}" for line in changed)
            raise InputError(f"{self.path} holds a run with another configuration:", *listed, remedy)
        if self.encoder.exists():
            raise InputError(
                f"{self.path} has an {ENCODER} but no {self.config.name}, so its origin is unknown. "
                "Choose another --out."
            )
        self.write_config(config)
        return True

    def write_config(self, config: RunConfig) -> None:
        """Write the configuration, whether or not there is one already."""
        write_file(self.config, json.dumps({"version": VERSION, **to_dict(config)}, indent=1).encode())

    def undo(self) -> None:
        """Undo `begin` if nothing was trained, so that a corrected command can use the folder."""
        if self.checkpoints.exists() or (self.log.exists() and self.log.stat().st_size):
            return
        self.log.unlink(missing_ok=True)
        self.config.unlink(missing_ok=True)
        self.id.unlink(missing_ok=True)
        with suppress(OSError):  # a folder with other files stays, and so may open files
            if set(self.path.iterdir()) <= {self.lock, self.signature}:
                for file in self.path.iterdir():
                    file.unlink()
            self.path.rmdir()

    @contextmanager
    def work(self) -> Iterator[None]:
        """Hold the folder; raise if another process works in it."""
        with self.hold() as free:
            if not free:
                raise InputError(
                    f"another process is working in {self.path}: wait until it ends, or take another --out."
                )
            yield

    @contextmanager
    def hold(self, *, device: str = "") -> Iterator[bool]:
        """Make the folder and lock it; yield False if another process holds the lock.

        The system releases the lock however this process ends. The same object may lock its folder again
        while it holds it. `device` is the one on which a worker of `reproduce` executes the run, noted for
        the other workers.
        """
        if self._held:
            yield True
            return
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"--out {self.path} is a file: give a folder.")
        make_folder(self.path)
        with ExitStack() as stack:
            with disk_errors(self.lock):
                state = stack.enter_context(lock(self.lock, timeout=LOCK_PATIENCE_S))
            if state == "busy":
                yield False
                return
            if state == "unsupported" and device:  # workers that share runs rely on locks
                text = "this file system has no locks: start only one process at a time."
                warnings.warn(text, InputWarning, stacklevel=3)
            who = Holder(host=socket.gethostname(), device=device, pid=os.getpid(), since=time.time())
            write_file(self.signature, json.dumps(who).encode())
            self._held = True
            try:
                yield True
            finally:
                self._held = False
                self.signature.unlink(missing_ok=True)

    def holder(self) -> Holder | None:
        """Return the process that works in the folder; {} if its note cannot be read, None without one."""
        if not self.signature.exists():
            return None
        try:
            with lock(self.lock, timeout=LOCK_PATIENCE_S) as state:
                if state == "held":
                    self.signature.unlink(missing_ok=True)  # left by a process that was killed
                if state != "busy":
                    return None
            return cast(Holder, dict(parse_json(self.signature.read_bytes())))
        except (PermissionError, FileNotFoundError):  # a read-only folder, or the process has just ended
            return None
        except (OSError, ValueError, TypeError):
            return Holder()

    def read_id(self) -> str:
        """Return the run's unique identifier of 16 hexadecimal digits, which the first call creates."""
        if not self.id.exists():
            write_file(self.id, secrets.token_hex(8).encode())
        return read_file(self.id).decode()

    def mark_shared(self) -> None:
        """Note that the times of this run are not those of a device used by it alone."""
        note = (
            "Other runs used the device while this one trained, so its times are not those of the device.\n"
        )
        write_file(self.shared, note.encode())


@cache
def _is_whole(path: Path, changed_ns: int, size: int) -> bool:
    """Return True if the result can be read; cached on (path, mtime, size): it is polled every second."""
    return read_json(path, Result) is not None


def default_folder(config: RunConfig) -> Path:
    """Return runs/DATASET-LOSS-M-seedSEED, the folder if --out is not given."""
    dataset = local_name(config.dataset).replace(os.sep, "_").replace(":", "_")
    return Path("runs") / f"{dataset}-{loss_name(config)}-{config.loss.num_positives}-seed{config.seed}"


def file_name(dataset: str) -> str:
    """Return a data set's name for use in file names; for images at a path with a digest: folder-1f0c2b3a."""
    kind, _, path = dataset.partition(":")
    return f"{kind}-{digest(path)}" if path else kind


def digest(settings: Any) -> str:
    """Return eight hex digits that identify JSON-compatible settings."""
    return sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
