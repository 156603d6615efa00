"""From a batch to its loss: contrastive or supervised, each with its model.

Shapes: B images of this rank's batch (after h halo rows, see `data.views`), C×H×W pixels.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intnacl.attacks.training_view import AdversaryConfig, adversarial_view
from intnacl.data import draws
from intnacl.data.augment import augment
from intnacl.data.augmentations import AugmentConfig
from intnacl.data.views import Views, augmented_views, make_views, one_per_view
from intnacl.errors import InputError
from intnacl.losses.config import LossConfig
from intnacl.losses.integrated import IntNaClLoss
from intnacl.models.batchnorm import stacked
from intnacl.models.encoders import ContrastiveModel, Encoder, EncoderConfig, build_model
from intnacl.models.kernels import fuse
from intnacl.models.kernels.half_weights import HalfWeights
from intnacl.training.online_probe import OnlineProbe

START = 0xFFFFFFFE  # in place of the view's number in the generator's counter: the adversary's random starts


@dataclass
class Parts:
    """The callables of a step, each of which may be replaced by a compiled or distributed version."""

    views: Callable[..., Any]
    """From images, rows of the batch and the step to the model's input."""
    embed: Callable[..., Any]
    """The model whose parameters get gradients: the part that DDP wraps."""

    in_eval: ClassVar[frozenset[str]] = frozenset()
    """The parts that run a model in eval mode, which our kernels do not support: they are compiled."""


@dataclass
class ContrastiveParts(Parts):
    """The callables of a contrastive step."""

    criterion: Callable[..., dict[str, Tensor]]
    """From embeddings to the terms of the loss."""
    attack: Callable[[Tensor], Tensor]
    """The model as the adversary uses it, with gradients of images only: never wrapped by DDP."""


class Objective(nn.Module):
    """A model and the way from a batch to its loss, in parts that can be compiled or distributed.

    `halo` is the number of rows of the global batch before this rank's own that each batch includes.
    """

    model: nn.Module
    encoder: Encoder
    parts: Parts
    """The parts in use, not registered as submodules, since some of them are the model under another name."""
    compilable: tuple[str, ...] = ("views", "model")
    """The parts that `compile_parts` can leave eager; "model" stands for all its uses."""
    halo: int = 0
    augment: AugmentConfig
    augmented_views: int = 1
    """The number of views that are augmented per image."""
    online_probe: OnlineProbe | None
    """Learns the labels from the features of every batch, without an effect on the training."""
    seed: Tensor
    """Seed of the views. A tensor, since with a number every seed would be compiled separately."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.register_buffer("seed", torch.tensor(seed), persistent=False)
        self._eager_parts: Parts | None = None
        self.online_probe = None

    def forward(self, images: Tensor, labels: Tensor | None, rows: Tensor, step: Tensor) -> dict[str, Tensor]:
        """Return the terms of the batch's loss; "loss" is the one to minimise."""
        raise NotImplementedError

    def distribute(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        """Wrap the model by DDP."""
        self.parts.embed = wrap(self.model)

    def gradients_reduced(self, on: bool) -> AbstractContextManager[Any]:
        """Under DDP, average the gradients of a backward pass inside over ranks if `on`, else keep them here.

        Gradients of an update's first batches are kept until its last, which averages the sum of all.
        """
        keep: Callable[[], AbstractContextManager[Any]] = getattr(self.parts.embed, "no_sync", nullcontext)
        return nullcontext() if on else keep()

    def after_backward(self) -> None:
        """Undo changes of the weights that `forward` made for one batch; by default there are none."""

    def compile_parts(self, compiler: Callable[[Any], Any] | None, eager: str | None = None) -> None:
        """Replace all parts except `eager` by compiled ones; without a compiler, restore all eager ones.

        A model that our kernels support trains with those instead, on half-precision copies of its weights
        that one kernel makes; under DDP it uses our kernels without these copies. In eval mode it is
        compiled.
        """
        self._eager_parts = self._eager_parts or self.parts
        fused = fuse(self.model, on=compiler is not None and eager != "model")
        replaced = {}
        for name, part in vars(self._eager_parts).items():
            is_model = isinstance(part, nn.Module)
            if compiler is None or eager == ("model" if is_model else name):
                continue
            if not (fused and is_model) or name in self.parts.in_eval:
                replaced[name] = compiler(part)
            elif part is self.model:
                replaced[name] = HalfWeights(part)
        self.parts = replace(self._eager_parts, **replaced)


class Contrastive(Objective):
    """Views of a batch, their embeddings in one pass, and a loss of the family."""

    parts: ContrastiveParts
    compilable = ("criterion", "views", "model")

    def __init__(
        self,
        loss: LossConfig,
        encoder: EncoderConfig,
        augment: AugmentConfig,
        adversary: AdversaryConfig,
        *,
        image_size: int,
        seed: int,
        world: int = 1,
        view_dtype: torch.dtype = torch.float32,
        probed_classes: int | None = None,
    ) -> None:
        super().__init__(seed)
        loss = replace(loss, gather=world > 1)
        self.loss = IntNaClLoss(**vars(loss))
        self.needed = self.loss.views_needed
        adversarial = self.needed.adversarial > 0
        # Just below 1, numbers are eps / 2 apart: most moves of less than half of that are rounded away.
        if adversarial and adversary.eps < torch.finfo(view_dtype).eps / 4:
            raise InputError(
                f"adversary.eps={adversary.eps!r} is lost in the rounding of {view_dtype} views: set "
                "train.precision=fp32, or take a larger radius."
            )
        self.model: ContrastiveModel = build_model(
            encoder, image_size=image_size, adversarial=adversarial, seed=seed
        )
        self.encoder = self.model.encoder
        if probed_classes is not None:
            self.online_probe = OnlineProbe(self.encoder.feature_dim, probed_classes)
        self.augment, self.adversary, self.view_dtype = augment, adversary, view_dtype
        self.augmented_views = augmented_views(augment, self.needed.extra, self.needed.mixed)
        # The adversary's moves are below the resolution of half precision: its views are rounded afterwards.
        self.pixel_dtype = torch.promote_types(view_dtype, torch.float32) if adversarial else view_dtype
        maximised = LossConfig(
            negatives=adversary.negatives,
            temperature=loss.temperature,
            tau_plus=loss.tau_plus,
            beta=loss.beta,
            gather=loss.gather,
        )
        self.maximised = IntNaClLoss(**vars(maximised))
        self.halo = self.needed.mixed if world > 1 else 0
        self.parts = ContrastiveParts(
            views=self._views, embed=self.model, criterion=self.loss.terms, attack=self.model
        )

    def forward(self, images: Tensor, labels: Tensor | None, rows: Tensor, step: Tensor) -> dict[str, Tensor]:
        """Return {"nacl", "robust", "loss"}; all views are embedded in one pass.

        The online probe, where there is one, adds "probe_train": its accuracy on both plain views in percent.
        """
        views = self.parts.views(images, rows, step)
        x = [*views.plain, *views.extra, *views.mixed]
        clean = len(x)
        if self.needed.adversarial:
            x.append(self.attack(views.plain[0], rows[self.halo :], step))
        with stacked(self.model, self.model.groups(clean, len(x) - clean)):
            stacked_z, features = self.parts.embed(torch.cat(x).to(self.view_dtype), with_features=True)
        z = list(stacked_z.chunk(len(x)))
        extra, mixed = z[2 : 2 + self.needed.extra], z[2 + self.needed.extra : clean]
        adversarial = z[clean] if len(z) > clean else None
        terms = self.parts.criterion(z[0], z[1], extra=extra, mixed=mixed, adversarial=adversarial)
        if self.online_probe is None or labels is None:
            return terms
        own = labels[self.halo :]
        probe_train = self.online_probe.learn(features[: 2 * len(own)], torch.cat([own, own]))
        return terms | {"probe_train": probe_train}

    def _views(self, images: Tensor, rows: Tensor, step: Tensor) -> Views:
        _, extra, mixed, _ = self.needed
        return make_views(
            images,
            self.augment,
            seed=self.seed,
            step=step,
            rows=rows,
            extra=extra,
            mixed=mixed,
            lam=self.loss.config.lam,
            halo=self.halo,
            dtype=self.pixel_dtype,
        )

    def attack(self, x: Tensor, rows: Tensor, step: Tensor) -> Tensor:
        """Return the adversarial views of x."""
        start = None
        if self.adversary.random_start:
            pixels = draws.uniform(self.seed, step, START, rows, x[0].numel())
            start = (2 * pixels.to(x.dtype) - 1).view_as(x)
        with stacked(self.model, [(1, True)]):
            return adversarial_view(
                self.parts.attack,
                x,
                self.adversary.eps,
                steps=self.adversary.steps,
                random_start=start,
                criterion=self.maximised,
                clamp=self.adversary.clamp,
                check=False,  # the check waits for the GPU; a NaN loss stops the training anyway
            )


class Supervised(Objective):
    """Cross-entropy of a linear layer on the encoder, trained end to end: the supervised baseline."""

    def __init__(
        self,
        classes: int,
        encoder: EncoderConfig,
        augment: AugmentConfig,
        *,
        image_size: int,
        seed: int,
        view_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(seed)
        contrastive = build_model(encoder, image_size=image_size, adversarial=False, seed=seed)
        self.encoder = contrastive.encoder
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = nn.Sequential(self.encoder, nn.Linear(self.encoder.feature_dim, classes))
        self.augment, self.view_dtype = augment, view_dtype
        self.parts = Parts(views=self._views, embed=self.model)

    def forward(self, images: Tensor, labels: Tensor | None, rows: Tensor, step: Tensor) -> dict[str, Tensor]:
        """Return {"accuracy" in percent, "loss"} of the augmented images."""
        assert labels is not None
        logits = self.parts.embed(self.parts.views(images, rows, step)).float()
        correct = (logits.detach().argmax(1) == labels).float().mean()
        return {"accuracy": 100 * correct, "loss": F.cross_entropy(logits, labels)}

    def _views(self, images: Tensor, rows: Tensor, step: Tensor) -> Tensor:
        images, config = one_per_view(images, self.augment, 1)
        return augment(images, config, seed=self.seed, step=step, view=0, rows=rows, dtype=self.view_dtype)
