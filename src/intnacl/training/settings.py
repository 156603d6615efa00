"""The settings of training: how long, how large, how fast."""

from dataclasses import dataclass, replace

import torch

from intnacl.errors import check_choice, must, one_of, setting
from intnacl.training.optimizers import OptimizerConfig
from intnacl.training.trackers import TRACKERS

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
POSITIVE = must(lambda v: v >= 1, "1 or more")
NOT_NEGATIVE = must(lambda v: v >= 0, "0 or more")


def _check_trackers(argument: str, names: tuple[str, ...]) -> None:
    for name in names:
        check_choice(argument, name, TRACKERS)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(OptimizerConfig):
    """Length, batches and speed of training; the defaults are the paper's for CIFAR."""

    epochs: int = setting(100, POSITIVE, flag=True)
    """Passes over the data set."""
    batch_size: int = setting(256, POSITIVE, flag=True)
    """Images per batch, over all ranks."""
    accumulate: int = setting(1, POSITIVE)
    """Batches per update; each batch supplies its own negatives."""
    ema: float = setting(0.0, must(lambda v: 0 <= v < 1, "from 0 to below 1"))
    """Decay of a moving average of the weights, which is then saved and measured as the encoder; 0: no
    average. After t updates it is at most (1 + t) / (10 + t)."""
    precision: str = setting("auto", one_of(*DTYPES, "auto"))
    """bf16, fp16, fp32 or fp64; auto: bf16 on GPUs that compute in it (NVIDIA's since Ampere) and on CPUs
    that train faster in it, else fp32, in which GPUs compute convolutions in TF32 by default."""
    compile: bool | None = setting(None, free=True)
    """Compile the step; None: only on a GPU."""
    cuda_graph: bool | None = setting(None, free=True)
    """Run an update as one captured CUDA graph; None: only on a GPU."""
    monitor_epochs: int = setting(10, NOT_NEGATIVE, free=True)
    """Epochs between quick measurements of the features; 0: never. They are the effective rank (RankMe) of at
    most 10,000 training images and, with labels, the kNN accuracy with these as neighbours on at most 2,000
    held-out images or, without a hold-out, training images."""
    online_probe: bool = setting(True, free=True)
    """Train a linear probe alongside a contrastive loss, on the features of both views; its accuracy is in
    the log. It needs labels, and does not change the encoder."""
    save_minutes: float = setting(5.0, NOT_NEGATIVE, free=True)
    """Minutes between checkpoints; one is always written at the end."""
    save_steps: int | None = setting(None, POSITIVE, free=True)
    """Also save after this many updates; None: off."""
    keep: int = setting(2, POSITIVE, free=True)
    """Recent checkpoints to keep; with held-out images, that of the best kNN accuracy is kept as well."""
    workers: int | None = setting(None, NOT_NEGATIVE, free=True)
    """Processes per rank that decode streamed images; None: one per core, without a GPU one per two cores."""
    trackers: tuple[str, ...] = setting((), _check_trackers, flag=True, free=True)
    """Programs that show the run's figures while it trains: tensorboard, wandb."""

    def with_usual_rate(self) -> "TrainConfig":
        """Return these settings with a learning rate, by default the optimiser's."""
        return self.with_rate(self.batch_size * self.accumulate)

    def on(self, device: torch.device) -> "TrainConfig":
        """Return these settings with all that depends on the device decided."""
        gpu, precision = device.type == "cuda", self.precision
        if precision == "auto":
            # Older GPUs emulate bf16, slowly. A GPU of another machine, as with Ray, is assumed to be newer.
            old = gpu and torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0)
            precision = "bf16" if gpu and not old else "fp32"
        return replace(
            self.with_usual_rate(),
            precision=precision,
            compile=gpu if self.compile is None else self.compile,
            cuda_graph=gpu if self.cuda_graph is None else self.cuda_graph,
        )
