"""Small objectives and trainers that the tests of this folder build on."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from intnacl.attacks.training_view import AdversaryConfig
from intnacl.data.augmentations import AugmentConfig
from intnacl.losses.integrated import PRESETS, LossConfig
from intnacl.models.encoders import EncoderConfig
from intnacl.training.journal import Journal
from intnacl.training.objectives import Contrastive
from intnacl.training.ranks import Ranks
from intnacl.training.settings import TrainConfig
from intnacl.training.stop import Stop
from intnacl.training.trainer import Monitor, Trainer

ALONE = Ranks(0, 1, torch.device("cpu"))


def labelled_images(count: int = 64) -> tuple[Tensor, Tensor]:
    """Random 8×8 images and labels of 4 classes, always the same."""
    generator = torch.Generator().manual_seed(7)
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return images, torch.arange(count) % 4


def contrastive(
    preset: str = "intnacl",
    *,
    world: int = 1,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    adversary: AdversaryConfig | None = None,
    loss: dict[str, Any] | None = None,
    **encoder: Any,
) -> Contrastive:
    return Contrastive(
        LossConfig(**PRESETS[preset] | ({"num_positives": 3} if preset == "intnacl" else {}) | (loss or {})),
        EncoderConfig(**{"name": "small"} | encoder),
        AugmentConfig(crop_scale=(0.4, 1.0)),
        adversary or AdversaryConfig(),
        image_size=8,
        seed=seed,
        world=world,
        view_dtype=dtype,
    )


def trainer(
    folder: Path,
    objective: Contrastive | None = None,
    *,
    here: Ranks = ALONE,
    monitor: Monitor | None = None,
    **settings: Any,
) -> Trainer:
    folder.mkdir(parents=True, exist_ok=True)
    config = TrainConfig(**{"epochs": 2, "batch_size": 16, "lr": 1e-3} | settings)
    images, labels = labelled_images()
    return Trainer(
        objective or contrastive(), images, labels, config,
        checkpoints=folder / "checkpoints", seed=0, here=here, monitor=monitor,
    )  # fmt: skip


def run(made: Trainer, stop: Stop | None = None) -> str | None:
    log = made.writer.folder.parent / "log.jsonl"
    made.resume()
    with Journal(log, epochs=made.config.epochs, active=made.here.main) as journal:
        return made.run(stop or Stop(), journal)


def state(made: Trainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in made.objective.model.state_dict().items()}
