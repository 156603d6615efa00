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
from intnacl.data.views import one_a_view
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
    """Distillation from a teacher (objective=distill). Defaults without another source are DeACL's."""

    prefix: ClassVar[str] = "distill."
    teacher: str | None = setting(None, flag=True)
    """A run's folder or an encoder's .safetensors file; None: `intnacl run` trains one in RUN/teacher."""
    teacher_sha256: str | None = setting(None, free=True)
    """SHA-256 of the teacher's file, noted when the run begins: it goes on with no other."""
    teacher_settings: tuple[str, ...] = ()
    """Settings of the teacher that `intnacl run` trains, as KEY=VALUE, beside those of its recipe."""
    start: str = setting("teacher", one_of("teacher", "random"))
    """"teacher": the student begins with the teacher's weights where they fit; "random"."""
    eps: float = setting(8 / 255, must(lambda v: 0 < v <= 1, "above 0 and at most 1: it counts in pixels"))
    """Radius of the attack in pixels of [0, 1]."""
    steps: int = setting(5, check_count)
    """Steps of the attack."""
    step_size: float = setting(2 / 255, check_number)
    """Size of each step in pixels."""
    random_start: bool = setting(True, check_bool)
    """Begin the attack at a random point of the ball."""
    ramp_epochs: float = setting(0.0, check_number)
    """Epochs in which radius and steps grow linearly to their full size, as in DAJAT (Addepalli et al. 2022);
    DeACL has none."""
    attack_target: str = setting("teacher", one_of("teacher", "student"))
    """Features of the clean image that the attack leads away from: the teacher's, or, as ProFeAT's (Addepalli
    et al. 2024), the student's own."""
    clean_weight: float = setting(1.0, check_number)
    """Weight of −cos(s(x), t(x))."""
    robust_weight: float = setting(2.0, check_number)
    """Weight of −cos(s(x_adv), ·); ProFeAT's is 8."""
    robust_target: str = setting("student", one_of("teacher", "student"))
    """Features of the clean image that s(x_adv) is drawn to: the student's own, or the teacher's."""
    teacher_view: str = setting("same", one_of("same", "weak"))
    """"same": the teacher sees the student's view; "weak": its crop and flip alone, as ProFeAT's, which
    matters where `augment` changes colours."""
    centre: bool = setting(False, check_bool)
    """Subtract the teacher's mean feature before cosines are taken: features that are means of non-negative
    numbers all point in nearly one direction. No paper has it."""
    perturbation: float = setting(0.0, check_number)
    """γ of adversarial weight perturbation (Wu et al. 2020), 0: none. DAQ-SDP (2024) has 0.002, DAJAT
    0.005."""
    perturbation_epoch: int = setting(0, must(lambda v: v >= 0, "0 or more"))
    """Epochs without weight perturbation; DAQ-SDP has 60 of 100, DAJAT 10."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attack_target == "student" and not self.random_start:
            raise InputError(
                "distill.random_start=False has no gradient with distill.attack_target=student: at the image "
                "itself the cosine is 1. Leave one of them out."
            )


class Student(nn.Module):
    """An encoder whose features are taken from a centre: pixels (B, 3, H, W) -> s(x) − c, (B, F)."""

    centre: Tensor

    def __init__(self, encoder: Encoder, centre: Tensor | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("centre", torch.zeros(encoder.feature_dim) if centre is None else centre)

    def forward(self, x: Tensor) -> Tensor:
        """Features, less the centre, in float32 at least."""
        return as_float(self.encoder(x)) - self.centre


@dataclass
class DistillParts(Parts):
    """The callables of a distilling step. Only `embed` is ever put under DDP."""

    teach: nn.Module
    """The teacher."""
    attack: nn.Module
    """The student as the attack sees it, which gives gradients to images alone."""
    climb: nn.Module
    """The student whose weights are perturbed."""

    in_eval = frozenset({"teach", "attack"})


class Distill(Objective):
    """The loss of clean and attacked images, which share one batch and its statistics of batch norm:

        L = −w_c · mean cos(s(x), t(x)) − w_r · mean cos(s(x_adv), s(x))

    with x_adv from `feature_view`, found by the student in eval mode, as DeACL does: the attack moves no
    statistics. The second target is t(x) where `robust_target` says so; neither is held fixed.

    With weight perturbation (Wu et al. 2020), L and its gradient are those at w + δ, where

        δ = γ · ‖w‖ · v / ‖v‖ for each kernel and matrix w, with v = ∇_w L(w) for the same x_adv,

    and the optimiser moves w itself. The pass for v leaves the statistics of batch norm as they were.
    Radius and γ are functions of the step on the device, so that one captured update serves all epochs.

    Args:
        config: the settings.
        teacher: frozen here, in eval mode.
        encoder, augment: of the student.
        batches: of an epoch, in which the ramp and the first epoch of the perturbation are counted.
        centre: (F,), what is subtracted from all features; None: nothing.
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
                f"choose an encoder.name of as many (now {encoder.name!r}), or another distill.teacher."
            )
        if config.start == "teacher":
            own = self.encoder.state_dict()
            fitting = {k: v for k, v in teacher.state_dict().items() if k in own and own[k].shape == v.shape}
            self.encoder.load_state_dict(fitting, strict=False)
        self.teacher = teacher.requires_grad_(False).eval()
        self.model = Student(self.encoder, centre)
        self.groups = [(2, False)] if encoder.norm == "joint" else [(1, False), (1, False)]
        # Half precision would round the attack's moves: the network converts pixels after it normalised them.
        self.pixel_dtype = torch.promote_types(view_dtype, torch.float32)
        self.parts = DistillParts(
            views=self._views, embed=self.model, teach=self.teacher, attack=self.model, climb=self.model
        )
        self._unperturbed: list[Tensor] = []

    def train(self, mode: bool = True) -> "Distill":
        """Change the student's mode; the teacher stays in eval mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, images: Tensor, labels: Tensor | None, rows: Tensor, step: Tensor) -> dict[str, Tensor]:
        """Return {"clean": −cos(s(x), t(x)), "robust": −cos(s(x_adv), ·), "loss"}, means over the batch."""
        x, seen = self.parts.views(images, rows, step)
        with torch.no_grad():
            target = as_float(self.parts.teach(seen)) - self.model.centre
        attacked = self.attack(x, target, rows, step)
        if self.config.perturbation:
            self._perturb(x, attacked, target, step)
        return self._terms(self.parts.embed, x, attacked, target)

    def attack(self, x: Tensor, target: Tensor, rows: Tensor, step: Tensor) -> Tensor:
        """Return the attacked images of views x, whose teacher's features are the target."""
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
        """Take the weight perturbation back."""
        if self._unperturbed:
            with torch.no_grad():
                torch._foreach_copy_(self._kernels(), self._unperturbed)
            self._unperturbed = []

    def _views(self, images: Tensor, rows: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return the student's view and the teacher's, whose crop and flip are the same."""
        images, own = one_a_view(images, self.augment, 1)

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
        """Move w to w + δ until `after_backward`, or by 0 in the epochs before the first perturbed one."""
        weights = self._kernels()
        with self._statistics_kept():
            loss = self._terms(self.parts.climb, x, attacked, target)["loss"]
            directions = torch.autograd.grad(loss, weights)
        if world_size() > 1:  # all ranks perturb alike
            for direction in directions:
                dist.all_reduce(direction)
        begun = step >= self.config.perturbation_epoch * self.batches
        with torch.no_grad():
            self._unperturbed = [weight.clone() for weight in weights]
            lengths = torch._foreach_norm(weights), torch._foreach_norm(directions)
            for weight, direction, length, of in zip(weights, directions, *lengths, strict=True):
                tiny = torch.finfo(of.dtype).tiny
                weight.add_(direction * (begun * self.config.perturbation * length / of.clamp(min=tiny)))
        torch.clear_autocast_cache()  # it would go on with half-precision copies of w

    @contextmanager
    def _statistics_kept(self) -> Iterator[None]:
        """Put the statistics of batch norm back after the block."""
        buffers = list(self.model.buffers())
        before = [buffer.clone() for buffer in buffers]
        try:
            yield
        finally:
            torch._foreach_copy_(buffers, before)
