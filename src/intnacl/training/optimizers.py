"""Optimisers and learning rates. A rate is a tensor on the device, so that a captured graph can read it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from intnacl.errors import Settings, check_number, must, one_of, setting

ADAM_RATE = 3e-4  # the paper's, for any batch size
# Rates of the others for an update of 256 images, to whose number they are proportional.
RATE_OF_256 = {
    "sgd": 0.05,  # SimSiam (Chen & He 2021), "Baseline settings"
    "lars": 0.3,  # SimCLR (Chen et al. 2020), "Default setting"
}

STEP_ENDS = (0.6, 0.8)  # of the schedule "steps": 15 and 20 of the 25 epochs of the RobustSSL benchmark


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Settings):
    """Optimiser and learning rate; the defaults are the paper's."""

    prefix: ClassVar[str] = "train."
    optimizer: str = setting("adam", one_of("adam", "adamw", "sgd", "lars"), called="optimizer")
    """adam, adamw, sgd or lars."""
    lr: float | None = setting(None, check_number, flag=True)
    """Learning rate; None: the optimiser's default for updates of B images, 0.0003 with adam and adamw,
    0.05·B/256 with sgd (SimSiam's), 0.3·B/256 with lars (SimCLR's)."""
    weight_decay: float = setting(0.0, check_number)
    """Weight decay of matrices and kernels: decoupled from the gradient with adamw, else added to it."""
    decay_vectors: bool = False
    """Apply weight decay to biases and the parameters of norms as well; lars never does."""
    momentum: float = setting(0.9, check_number)
    """Momentum of sgd and lars."""
    schedule: str = setting("constant", one_of("constant", "cosine", "steps"), called="schedule")
    """constant, cosine to zero, or steps: a tenth after 60 % of the updates and a hundredth after 80 %. Each
    follows the linear warm-up."""
    warmup_epochs: float = setting(0.0, check_number)
    """Epochs of linear warm-up, in which the rate rises to `lr`."""
    clip: float | None = setting(None, must(lambda v: v > 0, "above 0, or left out"))
    """Gradients are clipped to this norm; None: no clipping."""

    @property
    def changes_rate(self) -> bool:
        """True if the learning rate is not the same in all steps."""
        return self.schedule != "constant" or self.warmup_epochs > 0

    def with_rate(self, images: int) -> Self:
        """Return these settings with the optimiser's default rate for updates of `images`, if without one."""
        return self if self.lr is not None else replace(self, lr=usual_rate(self.optimizer, images))

    @property
    def rate(self) -> float:
        """The learning rate, which must have been set."""
        assert self.lr is not None, "with_rate() decides it"
        return self.lr


def usual_rate(optimizer: str, images: int) -> float:
    """Return an optimiser's default learning rate for updates of `images`."""
    return RATE_OF_256[optimizer] * images / 256 if optimizer in RATE_OF_256 else ADAM_RATE


class LARS(Optimizer):
    """Layer-wise adaptive rates (You et al. 2017): v ← μv + η (g + wd·w); w ← w − lr·v.

    η = 0.001·‖w‖ / ‖g + wd·w‖ for matrices and kernels. Biases and norms, which are vectors, have η = 1 and
    no weight decay.
    """

    def __init__(
        self, params: Iterable[Any], lr: Tensor | float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                g = w.grad
                if w.ndim > 1:
                    g = g + group["weight_decay"] * w
                    norms = w.norm(), g.norm()
                    g = g * torch.where((norms[0] > 0) & (norms[1] > 0), 0.001 * norms[0] / norms[1], 1.0)
                state = self.state[w]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(w)
                velocity = state["momentum_buffer"].mul_(group["momentum"]).add_(g)
                w.sub_(group["lr"] * velocity)


def build_optimizer(module: nn.Module, config: OptimizerConfig, device: torch.device) -> Optimizer:
    """Return the optimiser of all parameters that need gradients, its rate a tensor on the device."""
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [{"params": trained, "weight_decay": config.weight_decay}]
    if config.weight_decay and not config.decay_vectors and config.optimizer != "lars":
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
    rate, momentum = torch.tensor(config.rate, device=device), config.momentum
    cuda = device.type == "cuda"
    if config.optimizer in ("adam", "adamw"):
        adam = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
        # capturable: the step counter lives on the device; fused: one kernel. Both are CUDA's.
        return adam(groups, rate, capturable=cuda, fused=cuda or None)
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, rate, momentum, fused=cuda or None)
    return LARS(groups, rate, momentum, config.weight_decay)


def rate_at(config: OptimizerConfig, step: int, steps: int, warmup_steps: int) -> float:
    """Return the learning rate of a step: linear warm-up, then as the schedule says."""
    if step < warmup_steps:
        return config.rate * (step + 1) / warmup_steps
    if config.schedule == "constant":
        return config.rate
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    if config.schedule == "steps":
        return config.rate * 0.1 ** sum(done >= end for end in STEP_ENDS)
    return config.rate * 0.5 * (1 + math.cos(math.pi * done))


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Write the rate in place, where a captured graph reads it."""
    for group in optimizer.param_groups:
        group["lr"].fill_(rate)
