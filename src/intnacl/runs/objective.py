"""Building a run's objective from its configuration, with the encoders that it starts from."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from torch import nn

from intnacl.data.batches import steps_per_epoch
from intnacl.data.dataset import Dataset
from intnacl.errors import InputError
from intnacl.evaluation import probe
from intnacl.evaluation.features import extract
from intnacl.evaluation.precision import exact_float32
from intnacl.evaluation.probe import ProbeConfig
from intnacl.models.encoders import Encoder
from intnacl.models.weights import SavedEncoder, load_encoder, load_projection
from intnacl.runs.config import RunConfig
from intnacl.runs.folder import RunFolder
from intnacl.runs.images import RunImages, image_side
from intnacl.training.distill import Distill
from intnacl.training.finetune import Finetune
from intnacl.training.objectives import Contrastive, Objective, Supervised
from intnacl.training.ranks import Ranks
from intnacl.training.settings import DTYPES

# The probe that fine-tuning starts from; L-BFGS converges, however few the labels are.
INITIAL_PROBE = ProbeConfig(solver="lbfgs", l2=1e-3, standardize=True)


class Teacher(NamedTuple):
    """A teacher, and its projection head if the student's loss compares projections."""

    encoder: Encoder
    projection: nn.Module | None


def load_teacher(
    config: RunConfig, begun_with: RunConfig | None, folder: RunFolder
) -> tuple[RunConfig, Teacher]:
    """Return the configuration with the checksum of the teacher's file, and the teacher.

    Raise if the run was started with another teacher.
    """
    path = Path(config.distill.teacher or folder.teacher)
    if config.distill.teacher is None and not RunFolder(path).encoder.exists():
        raise InputError(
            f"distill.teacher is not given, and {path} holds no teacher: give --teacher RUN, or use "
            "`intnacl run`, which trains one first."
        )
    teacher = load_encoder(path)
    if begun_with is not None and begun_with.distill.teacher_sha256 not in (None, teacher.sha256):
        raise InputError(
            f"{folder} was started with another teacher than the present {path}: restore that teacher, or "
            "choose another --out."
        )
    distill = replace(config.distill, teacher_sha256=teacher.sha256)
    projection = load_projection(path) if distill.projection_weight else None
    return replace(config, distill=distill), Teacher(teacher.encoder, projection)


def training_images(config: RunConfig, images: RunImages) -> Dataset:
    """Return the images that a run trains on: all, or the labelled share of each class in fine-tuning."""
    train = images.training()
    if config.objective != "finetune" or config.finetune.labels == 1 or train.labels is None:
        return train
    return train.labelled_share(config.finetune.labels, config.seed)


def build_objective(
    config: RunConfig, train: Dataset, here: Ranks, teacher: Teacher | None = None
) -> Objective:
    """Build the objective: the model, and the computation from a batch to its loss."""
    side = image_side(train)
    dtype = DTYPES[config.train.precision]
    if config.objective == "distill":
        assert teacher is not None
        centre = None
        if config.distill.centre:
            batch = config.train.batch_size
            teacher.encoder.to(here.device)
            features_NF = extract(teacher.encoder, train.images, batch_size=batch, device=here.device)
            centre = features_NF.mean(0).cpu()
        return Distill(
            config.distill, teacher.encoder, config.encoder, config.augment,
            image_size=side, seed=config.seed, view_dtype=dtype, centre=centre, projection=teacher.projection,
            batches=steps_per_epoch(len(train), config.train.batch_size),
        )  # fmt: skip
    if config.objective == "supervised":
        if train.labels is None:
            raise InputError(f"dataset {config.dataset!r} has no labels: supervised training needs them.")
        return Supervised(
            len(train.classes),
            config.encoder,
            config.augment,
            image_size=side,
            seed=config.seed,
            view_dtype=dtype,
        )
    if config.objective == "finetune":
        if train.labels is None:
            raise InputError(f"dataset {config.dataset!r} has no labels: fine-tuning needs them.")
        begun, head = load_begun(config).encoder, None
        if config.finetune.start == "probe":
            with exact_float32():
                features_NF = extract(begun, train.images, device=here.device)
            head, _ = probe.fit(features_NF, train.labels, features_NF, train.labels, INITIAL_PROBE)
        return Finetune(
            config.finetune,
            begun,
            len(train.classes),
            config.augment,
            seed=config.seed,
            joint=config.encoder.norm == "joint",
            head=head,
        )
    size = config.train.batch_size
    if size < 2:
        raise InputError(f"train.batch_size={size} leaves no negatives: give 2 or more.")
    objective = Contrastive(
        config.loss,
        config.encoder,
        config.augment,
        config.adversary,
        image_size=side,
        seed=config.seed,
        world=here.world,
        view_dtype=dtype,
        probed_classes=len(train.classes) if config.train.online_probe and train.labels is not None else None,
    )
    if size <= (mixed := objective.needed.mixed):
        raise InputError(
            f"train.batch_size={size} is too small to mix each image with {mixed} others: give {mixed + 1} "
            f"or more, or a smaller loss.num_positives than {config.loss.num_positives}."
        )
    return objective


def load_begun(config: RunConfig) -> SavedEncoder:
    """Return the encoder that fine-tuning starts from; raise if it has been replaced."""
    if config.finetune.encoder is None:
        raise InputError(
            "finetune.encoder is not given: name the run whose encoder is to be fine-tuned, as `intnacl "
            "probe RUN --protocol aff` does."
        )
    found, wanted = load_encoder(config.finetune.encoder), config.finetune.encoder_sha256
    if wanted not in (None, found.sha256):
        raise InputError(
            f"{config.finetune.encoder} has another encoder than fine-tuning started from: choose another "
            "--out."
        )
    return found
