"""Distillation into a robust encoder: the student keeps a frozen teacher's features, on attacked images too.

Two steps, as in DeACL (Zhang et al. 2022, "Decoupled Adversarial Contrastive Learning for Self-supervised
Adversarial Robustness"): contrastive training gives accurate features (the teacher t), distillation makes
them robust (the student s). No labels are used.

Shapes: B images of this rank's batch, F features, C×H×W pixels.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from intnacl.attacks.training_view import as_float, feature_view
from intnacl.data import draws
from intnacl.data.augment import augment
from intnacl.data.augmentations import AugmentConfig
from intnacl.data.views import one_per_view
from intnacl.errors import (
    InputError,
    Settings,
    check_bool,
    check_count,
    check_number,
    must,
    one_of,
    setting,
)
from intnacl.losses.gather import world_size
from intnacl.models.batchnorm import stacked
from intnacl.models.encoders import Encoder, EncoderConfig, build_model
from intnacl.training.objectives import START, Objective, Parts


@dataclass(frozen=True, kw_only=True)
class DistillConfig(Settings):
    """Distillation from a teacher (objective=distill). Unless stated otherwise, defaults are DeACL's."""

    prefix: ClassVar[str] = "distill."
    teacher: str | None = setting(None, flag=True)
    """A run's folder or an encoder's .safetensors file; None: `intnacl run` trains one in RUN/teacher."""
    teacher_sha256: str | None = setting(None, free=True)
    """SHA-256 of the teacher's file, recorded when the run begins: it resumes with no other teacher."""
    teacher_settings: tuple[str, ...] = ()
    """Settings, as KEY=VALUE, of the teacher that `intnacl run` trains, on top of its recipe."""
    start: str = setting("teacher", one_of("teacher", "random"))
    """"teacher": the student starts with the teacher's weights where they fit; "random": with random ones."""
    eps: float = setting(8 / 255, must(lambda v: 0 < v <= 1, "above 0 and at most 1"))
    """Radius of the attack in pixel values from 0 to 1."""
    steps: int = setting(5, check_count)
    """Steps of the attack."""
    step_size: float = setting(2 / 255, check_number)
    """Size of each step in pixel values."""
    random_start: bool = setting(True, check_bool)
    """Begin the attack at a random point of the ball."""
    ramp_epochs: float = setting(0.0, check_number)
    """Epochs over which radius and step size grow linearly to their full values, as in DAJAT (Addepalli et
    al. 2022); DeACL has none."""
    attack_target: str = setting("teacher", one_of("teacher", "student"))
    """The clean image's features that the attack moves away from: the teacher's or, as in ProFeAT (Addepalli
    et al. 2024), the student's own."""
    clean_weight: float = setting(1.0, check_number)
    """Weight of −cos(s(x), t(x))."""
    robust_weight: float = setting(2.0, check_number)
    """Weight of −cos(s(x_adv), ·); 8 in ProFeAT."""
    robust_target: str = setting("student", one_of("teacher", "student"))
    """The clean image's features that s(x_adv) is trained towards: the student's own, or the teacher's."""
    projection_weight: float = setting(0.0, must(lambda v: 0 <= v <= 1, "a share from 0 to 1"))
    """Share of the loss on cosines of projections, by the teacher's frozen projection head; the rest is on
    cosines of features. ProFeAT has 0.5. The teacher must then be the folder of a contrastive run."""
    teacher_view: str = setting("same", one_of("same", "weak"))
    """"same": the teacher gets the student's view; "weak": only the same crop and flip, as in ProFeAT, which
    matters if `augment` changes colours."""
    centre: bool = setting(False, check_bool)
    """Subtract the teacher's mean feature before cosines are computed: features that are means of
    non-negative numbers all point in nearly the same direction. This is not from a paper."""
    perturbation: float = setting(0.0, check_number)
    """γ of adversarial weight perturbation (Wu et al. 2020); 0: none. DAQ-SDP (2024) has 0.002, DAJAT
    0.005."""
    perturbation_epoch: int = setting(0, must(lambda v: v >= 0, "0 or more"))
    """Epochs before weight perturbation starts; DAQ-SDP has 60 of 100, DAJAT 10."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attack_target == "student" and not self.random_start:
            raise InputError(
                "distill.random_start=False has no gradient with distill.attack_target=student: at the image "
                "itself the cosine is 1. Leave one of them out."
            )


class Student(nn.Module):
    """An encoder that returns vectors to compare by cosine: pixels (B, 3, H, W) -> s(x) − c, (B, F).

    With a projection head p of weight w they join features and projections: (√(1 − w)·u, √w·v) with
    u = (s(x) − c) / ‖s(x) − c‖ and v = p(s(x)) / ‖p(s(x))‖, so that the cosine of two such vectors is
    (1 − w)·cos of the features + w·cos of the projections.
    """

    centre: Tensor

    def __init__(
        self,
        encoder: Encoder,
        centre: Tensor | None,
        projection: nn.Module | None = None,
        weight: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder, self.projection, self.weight = encoder, projection, weight
        self.register_buffer("centre", torch.zeros(encoder.feature_dim) if centre is None else centre)

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors to compare by cosine, from pixels."""
        return self.compared(self.encoder(x))

    def compared(self, features_BF: Tensor) -> Tensor:
        """Return the vectors to compare by cosine, from the student's or the teacher's features."""
        features_BF = as_float(features_BF)
        centred_BF = features_BF - self.centre
        if self.projection is None:
            return centred_BF
        projected_BD = as_float(self.projection(features_BF))
        parts = (1 - self.weight, centred_BF), (self.weight, projected_BD)
        return torch.cat([share**0.5 * functional.normalize(part, dim=1) for share, part in parts], 1)

    def train(self, mode: bool = True) -> "Student":
        """Change the encoder's mode; the projection head stays in eval mode."""
        super().train(mode)
        if self.projection is not None:
            self.projection.eval()
        return self


@dataclass
class DistillParts(Parts):
    """The callables of a distillation step. Only `embed` is ever wrapped by DDP."""

    teach: nn.Module
    """The teacher."""
    attack: nn.Module
    """The student as the attack uses it, with gradients of images only."""
    perturb: nn.Module
    """The student as used to find the weight perturbation."""

    in_eval = frozenset({"teach", "attack"})


class Distill(Objective):
    """The loss of clean and attacked images, which share one batch and its statistics of batch norm:

        L = −w_c · mean cos(s(x), t(x)) − w_r · mean cos(s(x_adv), s(x))

    with x_adv from `feature_view` for the student in eval mode, as in DeACL, so that the attack changes no
    statistics. The second target is t(x) if `robust_target` is "teacher"; s(x) is not detached.

    With weight perturbation (Wu et al. 2020), L and its gradient are those at w + δ, where

        δ = γ · ‖w‖ · v / ‖v‖ for each kernel and matrix w, with v = ∇_w L(w) for the same x_adv,

    and the optimiser moves w itself. The pass for v leaves the statistics of batch norm as they were.
    Radius and γ are functions of the step on the device, so that one captured update serves all epochs.

    Args:
        config: the settings.
        teacher: frozen here, in eval mode.
        encoder, augment: the student's settings.
        batches: the number per epoch, which turns the ramp and the perturbation's start into steps.
        centre: (F,), subtracted from all features; None: nothing is.
        projection: the teacher's head, for `projection_weight` above 0.
    """

    model: Student
    parts: DistillParts

    def __init__(
        self,
        config: DistillConfig,
        teacher: Encoder,
        encoder: EncoderConfig,
        augment: AugmentConfig,
        *,
        image_size: int,
        seed: int,
        batches: int,
        centre: Tensor | None = None,
        projection: nn.Module | None = None,
        view_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(seed)
        self.config, self.augment, self.batches = config, augment, batches
        self.encoder = build_model(
            encoder, image_size=image_size, adversarial=False, seed=seed, load=config.start == "random"
        ).encoder
        if self.encoder.feature_dim != teacher.feature_dim:
            raise InputError(
                f"the teacher has {teacher.feature_dim} features, the student {self.encoder.feature_dim}: "
                f"choose an encoder.name with as many (now {encoder.name!r}), or another distill.teacher."
            )
        if config.start == "teacher":
            own = self.encoder.state_dict()
            fitting = {k: v for k, v in teacher.state_dict().items() if k in own and own[k].shape == v.shape}
            self.encoder.load_state_dict(fitting, strict=False)
        self.teacher = teacher.requires_grad_(False).eval()
        assert (projection is not None) == (config.projection_weight > 0)
        if projection is not None:
            projection.requires_grad_(False)
        self.model = Student(self.encoder, centre, projection, config.projection_weight)
        self.groups = [(2, False)] if encoder.norm == "joint" else [(1, False), (1, False)]
        # Half precision would round the attack's moves. The network converts pixels after normalising them.
        self.pixel_dtype = torch.promote_types(view_dtype, torch.float32)
        self.parts = DistillParts(
            views=self._views, embed=self.model, teach=self.teacher, attack=self.model, perturb=self.model
        )
        self._unperturbed: list[Tensor] = []

    def train(self, mode: bool = True) -> "Distill":
        """Change the student's mode; the teacher stays in eval mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, images: Tensor, labels: Tensor | None, rows: Tensor, step: Tensor) -> dict[str, Tensor]:
        """Return {"clean": −cos(s(x), t(x)), "robust": −cos(s(x_adv), ·), "loss"}, means over the batch."""
        x, teacher_x = self.parts.views(images, rows, step)
        with torch.no_grad():
            target = self.model.compared(self.parts.teach(teacher_x))
        attacked = self.attack(x, target, rows, step)
        if self.config.perturbation:
            self._perturb(x, attacked, target, step)
        return self._terms(self.parts.embed, x, attacked, target)

    def attack(self, x: Tensor, target: Tensor, rows: Tensor, step: Tensor) -> Tensor:
        """Return attacked images of views x; `target` are the teacher's vectors for them."""
        config = self.config
        start = None
        if config.random_start:
            pixels = draws.uniform(self.seed, step, START, rows, x[0].numel())
            start = (2 * pixels.to(x.dtype) - 1).view_as(x)
        grown = self._ramp(step).to(x.dtype)
        self.model.eval()
        try:
            if config.attack_target == "student":
                with torch.no_grad():
                    target = self.parts.attack(x)
            return feature_view(
                self.parts.attack, x, target, config.eps * grown, config.step_size * grown,
                steps=config.steps, random_start=start,
            )  # fmt: skip
        finally:
            self.model.train()

    def after_backward(self) -> None:
        """Undo the weight perturbation."""
        if self._unperturbed:
            with torch.no_grad():
                torch._foreach_copy_(self._kernels(), self._unperturbed)
            self._unperturbed = []

    def _views(self, images: Tensor, rows: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return the student's view and the teacher's, whose crop and flip are the same."""
        images, own = one_per_view(images, self.augment, 1)

        def view(config: AugmentConfig) -> Tensor:
            return augment(
                images, config, seed=self.seed, step=step, view=0, rows=rows, dtype=self.pixel_dtype
            )

        x = view(own)
        if self.config.teacher_view == "same":
            return x, x
        return x, view(replace(own, jitter_p=0.0, grayscale_p=0.0, blur_p=0.0, solarize_p=0.0))

    def _ramp(self, step: Tensor) -> Tensor:
        """Return min(1, (step + 1) / batches of the ramp), by which radius and steps are multiplied."""
        return ((step + 1) / max(1.0, self.config.ramp_epochs * self.batches)).clamp(max=1)

    def _terms(
        self, embed: Callable[[Tensor], Tensor], x: Tensor, attacked: Tensor, target: Tensor
    ) -> dict[str, Tensor]:
        with stacked(self.model, self.groups):
            clean_BF, attacked_BF = embed(torch.cat([x, attacked])).chunk(2)
        second_BF = clean_BF if self.config.robust_target == "student" else target
        clean = -functional.cosine_similarity(clean_BF, target).mean()
        robust = -functional.cosine_similarity(attacked_BF, second_BF).mean()
        loss = self.config.clean_weight * clean + self.config.robust_weight * robust
        return {"clean": clean, "robust": robust, "loss": loss}

    # ---- weight perturbation ---------------------------------------------------------------------------

    def _kernels(self) -> list[Tensor]:
        """Return the weights that are perturbed: kernels and matrices, not biases and norms."""
        return [weight for weight in self.model.parameters() if weight.requires_grad and weight.ndim > 1]

    def _perturb(self, x: Tensor, attacked: Tensor, target: Tensor, step: Tensor) -> None:
        """Replace w by w + δ until `after_backward`; δ = 0 in the epochs before the first perturbed one."""
        weights = self._kernels()
        with self._statistics_kept():
            loss = self._terms(self.parts.perturb, x, attacked, target)["loss"]
            directions = torch.autograd.grad(loss, weights)
        if world_size() > 1:  # all ranks use the same perturbation
            for direction in directions:
                dist.all_reduce(direction)
        begun = step >= self.config.perturbation_epoch * self.batches
        with torch.no_grad():
            self._unperturbed = [weight.clone() for weight in weights]
            norms = torch._foreach_norm(weights), torch._foreach_norm(directions)
            for weight, direction, weight_norm, direction_norm in zip(
                weights, directions, *norms, strict=True
            ):
                tiny = torch.finfo(direction_norm.dtype).tiny
                scale = begun * self.config.perturbation * weight_norm / direction_norm.clamp(min=tiny)
                weight.add_(direction * scale)
        torch.clear_autocast_cache()  # it still holds half-precision copies of w

    @contextmanager
    def _statistics_kept(self) -> Iterator[None]:
        """Put the statistics of batch norm back after the block."""
        buffers = list(self.model.buffers())
        before = [buffer.clone() for buffer in buffers]
        try:
            yield
        finally:
            torch._foreach_copy_(buffers, before)
