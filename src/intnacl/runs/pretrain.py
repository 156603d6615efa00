"""A run's folder, and its first stage, pretraining; `measure` has the others. Each can be resumed.

A run folder is the whole record: `config.json`, `log.jsonl`, `checkpoints/`, `encoder.safetensors`,
`curves.png`, `result.json`.
"""

import gc
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from intnacl.data import load
from intnacl.data.datasets import Dataset, is_at_path
from intnacl.errors import InputError
from intnacl.files import lock, make_folder, write_file
from intnacl.losses.integrated import PRESETS, LossConfig
from intnacl.models.weights import ENCODER, read_header, save_encoder
from intnacl.plots.curves import draw_learning
from intnacl.plots.style import save_figure
from intnacl.runs.config import RunConfig, differences, from_dict, to_dict
from intnacl.runs.monitor import build_monitor
from intnacl.training.checkpoint import CHECKPOINTS, saved
from intnacl.training.journal import LOG, TENSORBOARD, Journal, records
from intnacl.training.objectives import Contrastive, Objective, Supervised
from intnacl.training.ranks import Ranks, barrier
from intnacl.training.settings import DTYPES
from intnacl.training.step import memory_errors
from intnacl.training.stop import Stop
from intnacl.training.trainer import Trainer

CONFIG, CURVES, RESULT = "config.json", "curves.png", "result.json"


def pretrain(config: RunConfig, folder: Path, here: Ranks, stop: Stop) -> str | None:
    """Train the encoder of a run to the end (None) or until told to stop (the reason).

    The same call on the same folder goes on where it was; a finished run is left as it is.
    """
    config = replace(config, train=config.train.on(here.device))
    with _held(folder) if here.main else nullcontext():
        begun = here.main and open_folder(folder, config)
        if (folder / ENCODER).exists():
            _check_finished(config, folder)
            return None
        if here.main:
            _check_no_record(folder)
        try:
            with memory_errors():
                reason = _train(config, folder, here, stop)
        except BaseException:
            if begun:
                _undo_unless_trained(folder)
            raise
        gc.collect()  # model and views refer to each other: a GPU's memory would wait for Python's next look
        return reason


def _check_finished(config: RunConfig, folder: Path) -> None:
    """Raise if a run's encoder cannot be read, or if the images at its data set's path are others by now.

    Where the images are gone, there is nothing to confuse them with.
    """
    trained_on = read_header(folder / ENCODER).get("data")
    if trained_on is None or not is_at_path(config.dataset):
        return
    try:
        train = load(config.dataset, "train", config.root, size=config.size)
    except InputError:
        return
    check_data(folder, trained_on, train.checksum, len(train))


def check_data(folder: Path, before: str | None, now: str | None, count: int) -> None:
    """Raise unless the data set, now of `count` images, has the checksum that a run began with, if known."""
    if before is not None and before != now:
        raise InputError(
            f"{folder} was begun with other images or labels than the data set has now ({count:,} images): "
            "bring it back to what it was, or take another --out."
        )


def _check_no_record(folder: Path) -> None:
    """Raise if a run was measured here and its weights are gone: training would replace what is left."""
    if (folder / RESULT).exists() and not saved(folder / CHECKPOINTS):
        raise InputError(
            f"{folder} is the record of a finished run without its weights: take another --out to repeat it."
        )


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Make a folder and hold it against other processes; the system lets go of it however this one ends."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder} is a file: give a folder.")
    make_folder(folder)
    with lock(folder, wait=False) as held:
        if held.state == "busy":
            raise InputError(
                f"another process is training in {folder}: wait for its end, or take another --out."
            )
        yield


def _train(config: RunConfig, folder: Path, here: Ranks, stop: Stop) -> str | None:
    train = load(config.dataset, "train", config.root, size=config.size)
    objective = build_objective(config, train, here)
    trainer = Trainer(
        objective, train.images, train.labels, config.train,
        checkpoints=folder / CHECKPOINTS, seed=config.seed, here=here, checksum=train.checksum,
        monitor=build_monitor(config, train, here),
    )  # fmt: skip
    events = folder / TENSORBOARD if config.train.tensorboard else None
    log = folder / LOG
    with Journal(log, epochs=config.train.epochs, active=here.main, tensorboard=events) as journal:
        journal.say(train.facts)
        check_data(folder, trainer.resume(), train.checksum, len(train))
        reason = trainer.run(stop, journal)
    if reason is None and here.main:
        save_figure(draw_learning(records(journal.path)), folder / CURVES)
        size = train.images.shape[-1]
        save_encoder(objective.encoder, config.encoder, size, folder / ENCODER, data=train.checksum)
    barrier(here)  # a run is done for all when its files are
    return reason


def build_objective(config: RunConfig, train: Dataset, here: Ranks) -> Objective:
    """The model and the way from a batch to its loss."""
    side = image_side(train)
    dtype = DTYPES[config.train.precision]
    if config.objective == "supervised":
        if train.labels is None:
            raise InputError(f"dataset {config.dataset!r} has no labels: supervised training needs them.")
        return Supervised(
            len(train.classes), config.encoder, config.augment,
            image_size=side, seed=config.seed, view_dtype=dtype,
        )  # fmt: skip
    size = config.train.batch_size
    if size < 2:
        raise InputError(f"train.batch_size={size} has no negatives: take 2 or more.")
    objective = Contrastive(
        config.loss, config.encoder, config.augment, config.adversary,
        image_size=side, seed=config.seed, world=here.world, view_dtype=dtype,
    )  # fmt: skip
    if size <= (mixed := objective.needed.mixed):
        raise InputError(
            f"train.batch_size={size} has too few images to mix each with {mixed} others: take {mixed + 1} "
            f"or more, or a smaller loss.num_positives than {config.loss.num_positives}."
        )
    return objective


def image_side(train: Dataset) -> int:
    """The side of the images that an encoder is to be trained on."""
    height, width = train.images.shape[2:]
    if height != width:
        raise InputError(
            f"dataset {train.name!r} has {height}×{width} images, but encoders are for square ones: resize "
            "or crop them, or give them as folder:PATH, which does so."
        )
    return width


def open_folder(folder: Path, config: RunConfig) -> bool:
    """Begin a run folder (True), or make sure that it belongs to the same configuration (False)."""
    path = folder / CONFIG
    if path.exists():
        changed = differences(read_config(folder), config)
        if changed:
            raise InputError(
                f"{folder} holds a run with another configuration:\n  " + "\n  ".join(changed)
                + f"\n{_remedy(folder, changed)}"
            )  # fmt: skip
        return False
    if (folder / ENCODER).exists():
        raise InputError(
            f"{folder} has an {ENCODER} but no {CONFIG}: nothing tells how it came about. Take another --out."
        )
    write_file(path, json.dumps(to_dict(config), indent=1).encode())
    return True


def _remedy(folder: Path, changed: list[str]) -> str:
    """For a run that was begun with other settings."""
    if all(line.startswith(("evaluation.", "probe.")) for line in changed) and (folder / ENCODER).exists():
        commands = f"`intnacl probe {folder} …`, `intnacl attack {folder} …`"
        return f"To measure more on its encoder: {commands}. For a run of its own, take another --out."
    return f"Take another --out, such as {folder}-2, or the settings it has."


def _undo_unless_trained(folder: Path) -> None:
    """Take a folder back in which nothing was trained, so that the corrected command may have it."""
    log = folder / LOG
    if (folder / CHECKPOINTS).exists() or (log.exists() and log.stat().st_size):
        return
    log.unlink(missing_ok=True)
    (folder / CONFIG).unlink(missing_ok=True)
    with suppress(OSError):  # others' files are in it
        folder.rmdir()


def read_config(folder: Path) -> RunConfig:
    """The configuration of a run folder."""
    path = folder / CONFIG
    if not path.exists():
        raise InputError(
            f"{folder} is no run folder: it has no {CONFIG}. `intnacl pretrain --out {folder}` makes one."
        )
    try:
        return from_dict(json.loads(path.read_bytes()))
    except (ValueError, AttributeError) as error:
        raise InputError(f"{path} is damaged, or of another version: {error}") from error


def default_folder(config: RunConfig) -> Path:
    """runs/DATASET-LOSS-M-seedSEED, where --out is not given."""
    dataset = config.dataset.replace(os.sep, "_").replace(":", "_")
    return Path("runs") / f"{dataset}-{loss_name(config)}-{config.loss.num_positives}-seed{config.seed}"


def loss_name(config: RunConfig) -> str:
    """The preset with these settings, else what tells the loss from others."""
    if config.objective == "supervised":
        return config.objective
    loss = config.loss if config.loss.weight == "one" else replace(config.loss, weight="loss")  # both are ŵ
    for name, row in PRESETS.items():
        if replace(LossConfig(**row), temperature=loss.temperature) == loss:
            return name
    return f"{config.loss.nacl}-{config.loss.negatives}"
