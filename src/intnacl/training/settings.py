"""How a run is trained: how long, how large, how fast."""

from dataclasses import dataclass, replace

import torch

from intnacl.errors import InputError, check_choice
from intnacl.training.optimizers import OptimizerConfig
from intnacl.training.step import DTYPES


@dataclass(frozen=True, kw_only=True)
class TrainConfig(OptimizerConfig):
    """How long, how large, how fast; the defaults are the paper's for CIFAR."""

    epochs: int = 100
    """Passes over the data set."""
    batch_size: int = 256
    """Images per batch, over all ranks."""
    accumulate: int = 1
    """Batches per update; each batch supplies its own negatives."""
    precision: str = "auto"
    """bf16, fp16, fp32 or fp64; auto: bf16 on GPUs that compute in it (NVIDIA's since Ampere), else fp32, in
    which GPUs compute convolutions in TF32 unless torch is told not to."""
    compile: bool | None = None
    """Whether the step is compiled; None: on a GPU."""
    cuda_graph: bool | None = None
    """Whether an update is one captured CUDA graph; None: on a GPU."""
    monitor_epochs: int = 10
    """Epochs between quick measurements of kNN accuracy, on at most 10,000 + 2,000 images; 0: never."""
    save_minutes: float = 5.0
    """Minutes between checkpoints; one is always written at the end."""
    save_steps: int | None = None
    """Also save after this many updates; None: off."""
    keep: int = 2
    """How many recent checkpoints to keep, in addition to the best by kNN, or by loss where that is off."""
    tensorboard: bool = False
    """Whether the log is written for TensorBoard too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("train.precision", self.precision, (*DTYPES, "auto"))
        for name in ("epochs", "batch_size", "accumulate", "keep", "save_steps"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"train.{name}={getattr(self, name)!r} must be 1 or more.")
        for name in ("monitor_epochs", "save_minutes"):
            if not getattr(self, name) >= 0:
                raise InputError(f"train.{name}={getattr(self, name)!r} must be 0 or more.")

    def on(self, device: torch.device) -> "TrainConfig":
        """The same with everything decided that was left to the device."""
        gpu = device.type == "cuda"
        return replace(
            self,
            precision=_usual_precision(device) if self.precision == "auto" else self.precision,
            compile=gpu if self.compile is None else self.compile,
            cuda_graph=gpu if self.cuda_graph is None else self.cuda_graph,
        )


def _usual_precision(device: torch.device) -> str:
    """Older GPUs only emulate bf16, slowly. A GPU elsewhere, as under Ray, is taken for a new one."""
    if device.type != "cuda":
        return "fp32"
    old = torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0)
    return "fp32" if old else "bf16"
