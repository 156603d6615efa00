"""Fine-tuning of a trained encoder with a linear layer on top, adversarially by TRADES or on clean images.

The adversarial full fine-tuning (AFF) of the RobustSSL benchmark is TRADES on all labels.

Shapes: B images of this rank's batch, C classes, C×H×W pixels.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from intnacl.attacks.training_view import Model, ascend
from intnacl.data import draws
from intnacl.data.augment import augment
from intnacl.data.augmentations import AugmentConfig
from intnacl.data.views import one_per_view
from intnacl.errors import InputError, Settings, check_count, check_number, must, one_of, setting
from intnacl.models.batchnorm import stacked
from intnacl.models.encoders import Encoder
from intnacl.training.objectives import START, Objective, Parts

NEAR = 1e-3  # standard deviation of the normal noise on the image from which TRADES' attack starts


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(Settings):
    """Fine-tuning (objective=finetune). The defaults are those of TRADES (Zhang et al. 2019) in the RobustSSL
    benchmark's AFF (`trades_loss` of its vanilla fine-tuning)."""

    prefix: ClassVar[str] = "finetune."
    encoder: str | None = None
    """The encoder to fine-tune: a run's folder, or an encoder's .safetensors file."""
    encoder_sha256: str | None = None
    """SHA-256 of the encoder's file: the run resumes with no other."""
    labels: float = setting(1.0, must(lambda v: 0 < v <= 1, "a share above 0 and at most 1"))
    """Share of the training images to train on, the same of every class; `seed` chooses them."""
    start: str = setting("zero", one_of("zero", "probe"))
    """Start of the linear layer: "zero"; "probe": a linear probe of the encoder on the same images, so that
    fine-tuning need not find the layer as well (LP-FT, Kumar et al. 2022)."""
    clusters: int = setting(0, must(lambda v: v == 0 or v >= 2, "2 or more, or 0"))
    """Train on pseudo-labels, as in DynACL++ (Luo et al. 2023): this many clusters, found by k-means in
    features of the training images, whose labels are not used; 0: train on the labels."""
    clustered: str | None = None
    """The encoder whose features are clustered, such as the teacher: a run's folder, or an encoder's
    .safetensors file; None: the encoder to fine-tune."""
    head_epochs: int = setting(10, check_count)
    """Epochs in which the linear layer first learns the pseudo-labels on the frozen encoder; DynACL++ has
    10."""
    head_lr: float = setting(0.01, check_number)
    """Learning rate of SGD in these epochs."""
    beta: float = setting(6.0, check_number)
    """Weight of the robust term; 0: cross-entropy of clean images alone, and no attack."""
    eps: float = setting(8 / 255, must(lambda v: 0 < v <= 1, "above 0 and at most 1"))
    """Radius of the attack in pixel values from 0 to 1."""
    steps: int = setting(10, check_count)
    """Steps of the attack."""
    step_size: float = setting(2 / 255, check_number)
    """Size of each step in pixel values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clusters and self.labels != 1:
            raise InputError(
                f"finetune.labels={self.labels:g} is a share of the labels, and finetune.clusters="
                f"{self.clusters} uses none: leave one of them out."
            )


@dataclass
class FinetuneParts(Parts):
    """The callables of a fine-tuning step."""

    attack: nn.Module
    """The classifier as the attack uses it, with gradients of images only: never wrapped by DDP."""

    in_eval = frozenset({"attack"})


class Finetune(Objective):
    """TRADES: L = cross-entropy(z(x), y) + β · mean KL(softmax z(x) ‖ softmax z(x_adv)).

    x_adv maximises that divergence by sign steps in ball and box, for the classifier in eval mode, and clean
    and attacked images have separate statistics of batch norm, both as in the benchmark. The linear layer
    starts as `head`, which knows only the classes that have training images, or at zero.
    """

    parts: FinetuneParts

    def __init__(
        self,
        config: FinetuneConfig,
        encoder: Encoder,
        classes: int,
        views: AugmentConfig,
        *,
        seed: int,
        joint: bool = False,
        head: nn.Linear | None = None,
    ) -> None:
        super().__init__(seed)
        self.config, self.augment, self.encoder = config, views, encoder
        self.head = nn.Linear(encoder.feature_dim, classes, device="meta").to_empty(device="cpu")
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        if head is not None:
            with torch.no_grad():
                self.head.weight[: head.out_features] = head.weight.cpu()
                self.head.bias[: head.out_features] = head.bias.cpu()
        self.model = nn.Sequential(encoder, self.head)
        self.groups = [(2, False)] if joint else [(1, False), (1, False)]
        self.parts = FinetuneParts(views=self._views, embed=self.model, attack=self.model)

    def forward(self, images: Tensor, labels: Tensor | None, rows: Tensor, step: Tensor) -> dict[str, Tensor]:
        """Return {"accuracy" in percent, "robust", "loss"} of the augmented images."""
        assert labels is not None
        x = self.parts.views(images, rows, step)
        if self.config.beta == 0:
            clean_BC = self.parts.embed(x).float()
            robust = clean_BC.new_zeros(())
        else:
            with stacked(self.model, self.groups):
                logits = self.parts.embed(torch.cat([x, self.attack(x, rows, step)])).float()
            clean_BC, attacked_BC = logits.chunk(2)
            robust = _divergence(attacked_BC, clean_BC).mean()
        right = (clean_BC.detach().argmax(1) == labels).float().mean()
        loss = functional.cross_entropy(clean_BC, labels) + self.config.beta * robust
        return {"accuracy": 100 * right, "robust": robust, "loss": loss}

    def attack(self, x: Tensor, rows: Tensor, step: Tensor) -> Tensor:
        """Return the attacked images of views x."""
        uniform = draws.uniform(self.seed, step, START, rows, x[0].numel())
        start = NEAR * torch.special.ndtri(uniform.clamp(2.0**-25)).view_as(x)
        self.model.eval()
        try:
            return divergent_view(
                self.parts.attack, x, x + start, self.config.eps, self.config.step_size, self.config.steps
            )
        finally:
            self.model.train()

    def _views(self, images: Tensor, rows: Tensor, step: Tensor) -> Tensor:
        images, config = one_per_view(images, self.augment, 1)
        # In float32: half precision would round the attack's moves.
        return augment(images, config, seed=self.seed, step=step, view=0, rows=rows)


def divergent_view(
    model: Model, x: Tensor, start: Tensor, eps: float, step_size: float, steps: int
) -> Tensor:
    """Return x_adv that maximises KL(softmax z(x) ‖ softmax z(x_adv)) by sign steps in ball and box."""
    with torch.no_grad():
        clean_BC = model(x).float()

    def divergence(moved: Tensor) -> Tensor:
        return _divergence(model(moved).float(), clean_BC).sum()

    return ascend(divergence, x, start, eps, step_size, steps)


def _divergence(attacked_BC: Tensor, clean_BC: Tensor) -> Tensor:
    """Return KL(softmax(clean) ‖ softmax(attacked)) of each sample, (B,)."""
    of_attacked, of_clean = attacked_BC.log_softmax(1), clean_BC.log_softmax(1)
    return functional.kl_div(of_attacked, of_clean, reduction="none", log_target=True).sum(1)
