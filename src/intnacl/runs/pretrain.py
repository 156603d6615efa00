"""The first stage of a run: training its encoder. The other stages are in `measure`."""

import gc
import math
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import torch

from intnacl.data.datasets import is_at_path
from intnacl.errors import InputError, InputWarning
from intnacl.evaluation.monitor import Monitor
from intnacl.models.encoders import EncoderConfig, build_model
from intnacl.models.weights import read_header, save_encoder, save_projection
from intnacl.plots.curves import draw_learning
from intnacl.plots.style import save_figure
from intnacl.runs.config import VERSION, RunConfig, flatten, to_dict
from intnacl.runs.folder import RunFolder
from intnacl.runs.heads import save_head
from intnacl.runs.images import RunImages, image_side
from intnacl.runs.objective import Teacher, build_objective, load_teacher, training_images
from intnacl.runs.pseudo_labels import pseudo_labels
from intnacl.runs.resolve import as_begun
from intnacl.training.finetune import Finetune
from intnacl.training.journal import Journal, last_record, records
from intnacl.training.objectives import Contrastive
from intnacl.training.online_probe import OnlineProbe
from intnacl.training.ranks import Ranks, barrier
from intnacl.training.step import memory_errors
from intnacl.training.stop import Stop
from intnacl.training.trackers import TRACKERS, Tracker, Tracking
from intnacl.training.trainer import Trainer


def pretrain(
    config: RunConfig,
    folder: RunFolder,
    here: Ranks,
    stop: Stop,
    images: RunImages | None = None,
    trackers: Sequence[Tracker] = (),
) -> str | None:
    """Train the encoder of a run to the end, or until told to stop; return the reason of a stop, or None.

    The same call on the same folder resumes; a finished run is left unchanged. `images` may be loaded
    already; `trackers` are added to those of the configuration.
    """
    images = images or RunImages(config)
    begun_with, version = folder.read_versioned_config() if folder.config.exists() else (None, VERSION)
    why = images.decide(begun_with, here)
    config = decided(config, begun_with, here, images)
    if begun_with and version < VERSION:
        config, kept = as_begun(config, begun_with)
        if kept and here.main:
            listed = ", ".join(f"{key}={value}" for key, value in kept.items())
            text = f"{folder} keeps defaults of the version that started it, {listed}"
            warnings.warn(f"{text}: another --out gets today's.", InputWarning, stacklevel=2)
    teacher = None
    if config.objective == "distill" and not folder.encoder.exists():
        config, teacher = load_teacher(config, begun_with, folder)
    with folder.work() if here.main and not folder.encoder.exists() else nullcontext():
        begun = here.main and folder.begin(config)
        if folder.encoder.exists():
            _check_trained(folder, images)
            ranks = int((last_record(folder.log) or {}).get("ranks", here.world))
            if here.main and ranks != here.world and not config.encoder.same_on_any_ranks:
                text = f"{_on(folder, ranks)} and stays as it is: batch norm takes its statistics per rank."
                warnings.warn(text, InputWarning, stacklevel=2)
            return None
        if here.main and folder.state() == "record":
            raise InputError(
                f"{folder} is the record of a finished run without its weights: choose another --out to "
                "repeat it."
            )
        try:
            with memory_errors():
                reason = _train(config, folder, here, stop, images, trackers, teacher, why)
        except BaseException:
            if begun:
                folder.undo()
            raise
        gc.collect()  # model and views form a reference cycle, which would keep GPU memory until a collection
        return reason


def decided(config: RunConfig, begun_with: RunConfig | None, here: Ranks, images: RunImages) -> RunConfig:
    """Return the configuration with the device-dependent settings decided.

    On a CPU, a run keeps the precision with which it was started, and a new one uses the faster one.
    """
    train = config.train
    if is_at_path(config.dataset) or images.stream == "always":  # otherwise it has no effect
        config = replace(config, stream=images.stream)
    if train.precision == "auto" and here.device.type == "cpu":
        if begun_with is not None:
            train = replace(train, precision=begun_with.train.precision)
        elif config.encoder.name != "small" and here.world == 1:
            precision = faster_precision(config.encoder, image_side(images.training()))
            train = replace(train, precision=precision)
    return replace(config, train=train.on(here.device))


@cache
def faster_precision(encoder: EncoderConfig, side: int) -> str:
    """Return the faster precision for training this encoder on this CPU, "bf16" or "fp32".

    The least time of three forward and backward passes decides. bf16 must be a quarter faster, so that runs
    on one machine do not differ by chance. CPUs without bf16 instructions emulate it slowly.
    """
    model = build_model(encoder, image_size=side, adversarial=False, seed=0, load=False).encoder
    model.train().to(memory_format=torch.channels_last)
    images = torch.zeros(16, 3, side, side)
    least = {"fp32": math.inf, "bf16": math.inf}
    for _ in range(3):
        for precision in least:
            begun = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                features = model(images)
            features.float().sum().backward()
            least[precision] = min(least[precision], time.perf_counter() - begun)
    return "bf16" if least["bf16"] < 0.75 * least["fp32"] else "fp32"


def _check_trained(folder: RunFolder, images: RunImages) -> None:
    """Raise if a run's encoder cannot be read, or if the images at its data set's path have changed.

    If the images are gone, they cannot be confused with others.
    """
    trained_on = read_header(folder.encoder).get("data")
    if trained_on is None or not is_at_path(images.own):
        return
    try:
        train = images.training()
    except InputError:
        return
    check_data(folder, trained_on, train.checksum, len(train))


def check_data(folder: RunFolder, before: str | None, now: str | None, count: int) -> None:
    """Raise unless the data set, now of `count` images, has the checksum noted when a run started, if any."""
    if before is not None and before != now:
        raise InputError(
            f"{folder} was started with other images or labels than the data set has now ({count:,} "
            "images): restore the data set, or choose another --out."
        )


def check_ranks(folder: RunFolder, config: RunConfig, before: int | None, here: Ranks) -> None:
    """Raise unless a run resumes on as many ranks as before, if known, or their number does not matter."""
    if before in (None, here.world):
        return
    said = f"{_on(folder, before)}, and this command has {here.world}"
    if not config.encoder.same_on_any_ranks:
        raise InputError(
            f"{said}. Batch norm takes its statistics per rank, so their number is part of the run: "
            f"resume with {before} (torchrun --nproc-per-node), or choose another --out. "
            "Runs with encoder.sync=true resume on any number of ranks."
        )
    if here.main:
        text = f"{said}: the run resumes, and results are equal up to rounding."
        warnings.warn(text, InputWarning, stacklevel=2)


def check_decoder(folder: RunFolder, before: str | None, now: str | None) -> None:
    """Raise unless images are decoded by the version noted when a run started: others round differently."""
    if before not in (None, now):
        raise InputError(
            f"{folder} was started with images decoded by {before}, but {now} is installed: install that "
            "version of Pillow, or choose another --out."
        )


def _on(folder: RunFolder, ranks: int) -> str:
    return f"{folder} was trained on {ranks} rank{'s' if ranks > 1 else ''}"


def _train(
    config: RunConfig,
    folder: RunFolder,
    here: Ranks,
    stop: Stop,
    images: RunImages,
    trackers: Sequence[Tracker],
    teacher: Teacher | None,
    why: str,
) -> str | None:
    tracking = tracking_of(folder, config, config.train.trackers, trackers) if here.main else None
    train, pseudo = training_images(config, images), None
    facts = [train.facts]
    if config.objective == "finetune" and config.finetune.clusters:
        pseudo = pseudo_labels(config, train, folder, here)
        train = pseudo.given_to(train)
        facts.append(pseudo.facts)
    objective = build_objective(config, train, here, teacher)
    if pseudo is not None and isinstance(objective, Finetune):
        objective.head.load_state_dict(pseudo.head)
    trainer = Trainer(
        objective,
        train.images,
        train.labels,
        config.train,
        checkpoints=folder.checkpoints,
        seed=config.seed,
        here=here,
        checksum=train.checksum,
        monitor=build_monitor(config, images, here, objective.online_probe),
        stream=config.stream == "always",
        max_broken=config.max_broken,
    )
    with Journal(
        folder.log,
        epochs=config.train.epochs,
        active=here.main,
        tracking=tracking,
        constant=() if config.train.changes_rate else ("lr",),
    ) as journal:
        for line in (*facts, why):
            if line:
                journal.say(line)
        if (begun := trainer.resume()) is not None:
            check_data(folder, begun.get("data"), train.checksum, len(train))
            check_ranks(folder, config, begun.get("ranks"), here)
            check_decoder(folder, begun.get("decoder"), trainer.decoder)
        reason = trainer.run(stop, journal)
    if reason is None and here.main:
        save_figure(draw_learning(records(folder.log)), folder.curves)
        size, data = train.images.shape[-1], train.checksum
        with trainer.at_best() if config.holdout else nullcontext(False) as is_best:
            if is_best:
                save_encoder(objective.encoder, config.encoder, size, folder.best_encoder, data=data)
        with trainer.train_step.averaged():
            if isinstance(objective, Finetune) and pseudo is None:
                save_head(objective.head, folder.head)
            if isinstance(objective, Contrastive):
                save_projection(objective.model, folder.projection)
            # Last, because this file marks the run as trained.
            save_encoder(objective.encoder, config.encoder, size, folder.encoder, data=data)
    barrier(here)  # no rank goes on before the files are written
    return reason


def tracking_of(
    folder: RunFolder, config: RunConfig, names: Sequence[str], more: Sequence[Tracker]
) -> Tracking | None:
    """Return the trackers of these names and `more` for a run; None if there are none."""
    trackers = [*(TRACKERS[name]() for name in dict.fromkeys(names)), *more]
    if not trackers:
        return None
    settings = dict(flatten(to_dict(config)))
    return Tracking(trackers, id=folder.read_id(), folder=folder.path, config=settings)


def build_monitor(
    config: RunConfig, images: RunImages, here: Ranks, probe: OnlineProbe | None = None
) -> Monitor | None:
    """Return the monitor of the features on the main rank; None on others, or if it is off."""
    if not config.train.monitor_epochs or not here.main:
        return None
    held_out = images.split(images.own, "holdout") if config.holdout else None
    return Monitor(images.training(), held_out, here.device, probe)
