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
    """Decay of the moving average of the weights, which is then the encoder that is kept and measured; 0: the
    weights themselves. The first updates have a smaller one, (1 + t) / (10 + t) after t of them."""
    precision: str = setting("auto", one_of(*DTYPES, "auto"))
    """bf16, fp16, fp32 or fp64; auto: bf16 on GPUs that compute in it (NVIDIA's since Ampere) and on CPUs
    that train faster in it, else fp32, in which GPUs compute convolutions in TF32 by default."""
    compile: bool | None = setting(None, free=True)
    """Compile the step; None: on a GPU."""
    cuda_graph: bool | None = setting(None, free=True)
    """Run an update as one captured CUDA graph; None: on a GPU."""
    monitor_epochs: int = setting(10, NOT_NEGATIVE, free=True)
    """Epochs between quick measurements of the features, 0: never. At most 10,000 training images give the
    effective rank (RankMe) and, where they are labelled, classify at most 2,000 that were held out (kNN) or,
    without a hold-out, as many of themselves."""
    online_probe: bool = setting(True, free=True)
    """Train a linear probe beside a contrastive loss, on the features of both views: its accuracy is in the
    log. It does not change the encoder. Without labels there is none."""
    save_minutes: float = setting(5.0, NOT_NEGATIVE, free=True)
    """Minutes between checkpoints; one is always written at the end."""
    save_steps: int | None = setting(None, POSITIVE, free=True)
    """Also save after this many updates; None: off."""
    keep: int = setting(2, POSITIVE, free=True)
    """Recent checkpoints to keep; where images are held out, also that of the best kNN accuracy on them."""
    workers: int | None = setting(None, NOT_NEGATIVE, free=True)
    """Processes of each rank that decode streamed images; None: one a core, on CPUs one for two cores."""
    trackers: tuple[str, ...] = setting((), _check_trackers, flag=True, free=True)
    """Programs that show the run's figures as it goes on: tensorboard, wandb."""

    def with_usual_rate(self) -> "TrainConfig":
        """Return these settings with a learning rate, that of the optimiser where none was given."""
        return self.with_rate(self.batch_size * self.accumulate)

    def on(self, device: torch.device) -> "TrainConfig":
        """Return these settings with everything decided, also what was left to the device."""
        gpu, precision = device.type == "cuda", self.precision
        if precision == "auto":
            # Older GPUs only emulate bf16, slowly. A GPU elsewhere, as under Ray, is taken for a new one.
            old = gpu and torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0)
            precision = "bf16" if gpu and not old else "fp32"
        return replace(
            self.with_usual_rate(),
            precision=precision,
            compile=gpu if self.compile is None else self.compile,
            cuda_graph=gpu if self.cuda_graph is None else self.cuda_graph,
        )
