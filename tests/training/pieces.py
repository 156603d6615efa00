"""Small objectives and trainers that the tests of this folder build on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from intnacl.attacks.training_view import AdversaryConfig
from intnacl.data.augmentations import AugmentConfig
from intnacl.losses.config import PRESETS, LossConfig
from intnacl.models.encoders import Encoder, EncoderConfig, build_model
from intnacl.training.distill import Distill, DistillConfig
from intnacl.training.journal import Journal
from intnacl.training.objectives import Contrastive, Objective
from intnacl.training.ranks import Ranks
from intnacl.training.settings import TrainConfig
from intnacl.training.step import TrainStep
from intnacl.training.stop import Stop
from intnacl.training.trainer import Trainer

ALONE = Ranks(0, 1, torch.device("cpu"))


def labelled_images(count: int = 64) -> tuple[Tensor, Tensor]:
    """Random 8×8 images and labels of 4 classes, always the same."""
    generator = torch.Generator().manual_seed(7)
    images = torch.randint(0, 256, (count, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return images, torch.arange(count) % 4


def contrastive(
    preset="intnacl", *, world=1, dtype=torch.float32, seed=0, adversary=None, loss=None,
    probed: int | None = 4, **encoder: Any,
) -> Contrastive:  # fmt: skip
    positives = {"num_positives": 3} if preset == "intnacl" else {}
    criterion = LossConfig(**PRESETS[preset] | positives | (loss or {}))
    model, views = EncoderConfig(**{"name": "small"} | encoder), AugmentConfig(crop_scale=(0.4, 1.0))
    place = {"image_size": 8, "seed": seed, "world": world, "view_dtype": dtype, "probed_classes": probed}
    return Contrastive(criterion, model, views, adversary or AdversaryConfig(), **place)


def teacher(seed: int = 5, name: str = "small") -> Encoder:
    """An untrained encoder for 8×8 images whose running statistics are not the initial ones."""
    encoder = build_model(EncoderConfig(name=name), image_size=8, adversarial=False, seed=seed).encoder
    images, _ = labelled_images()
    for _ in range(3):
        encoder(images / 255)
    return encoder.eval()


def distill(
    *, dtype=torch.float32, views=None, name="small", norm="joint", sync=False, centre=None, projection=None,
    **settings: Any,
) -> Distill:  # fmt: skip
    """A student of `teacher`, on epochs of four batches."""
    model = EncoderConfig(name=name, norm=norm, sync=sync)
    views = views or AugmentConfig(crop_scale=None, crop_padding=1, jitter_p=0.0, grayscale_p=0.0)
    place = {"image_size": 8, "seed": 0, "batches": 4, "view_dtype": dtype, "centre": centre}
    place |= {"projection": projection}
    return Distill(DistillConfig(**settings), teacher(name=name), model, views, **place)


def train_step(objective: Objective | None = None, *, here: Ranks = ALONE, **settings: Any) -> TrainStep:
    """Plain gradient descent on batches of 8 in float32, unless the settings say otherwise."""
    sgd = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.0}
    config = TrainConfig(**{"batch_size": 8, "precision": "fp32"} | sgd | settings)
    return TrainStep(objective or contrastive(), *labelled_images(), config, here)


def trainer(folder: Path, objective=None, here=ALONE, monitor=None, data=None, **settings: Any) -> Trainer:
    folder.mkdir(parents=True, exist_ok=True)
    config = TrainConfig(**{"epochs": 2, "batch_size": 16, "lr": 1e-3} | settings)
    place = {"checkpoints": folder / "checkpoints", "seed": 0, "here": here, "monitor": monitor}
    return Trainer(objective or contrastive(), *(data or labelled_images()), config, **place)


class Watched:
    """Replaces a trainer's `train_step`: calls `before`, then records the arguments of each update."""

    def __init__(self, made: Trainer, before: Callable[[], object] = lambda: None) -> None:
        self._step, self._before = made.train_step, before
        self.indices, self.first_batches, self.terms = [], [], []
        made.train_step = self

    def __call__(self, index_kR: Tensor, first_batch: int) -> Tensor:
        self._before()
        self.indices.append(index_kR)
        self.first_batches.append(first_batch)
        self.terms.append(self._step(index_kR, first_batch).clone())
        return self.terms[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


class StopAfter(Stop):
    """Stops after it has been checked this many times, which training does once per update."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.left = looks

    def due(self) -> bool:
        self.left -= 1
        self.reason = self.reason or ("terminate" if self.left < 0 else None)
        return self.reason is not None


def run(made: Trainer, stop: Stop | None = None) -> str | None:
    log = made.writer.folder.parent / "log.jsonl"
    made.resume()
    with Journal(log, epochs=made.config.epochs, active=made.here.main) as journal:
        return made.run(stop or Stop(), journal)


def state(made: Trainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in made.objective.model.state_dict().items()}
