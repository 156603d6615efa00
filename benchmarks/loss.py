"""Time and saved memory of the loss against its plain full-matrix form, lightly and pytorch-metric-learning.

    python benchmarks/loss.py                 # CPU, 256, 1,024 and 4,096 pairs
    python benchmarks/loss.py --device cuda

Times are of forward + backward, the median of alternating runs, as ratios to the plain form of the same loss
in the same run. Kept memory is the memory that autograd saves between forward and backward.
"""

import argparse
import math
import platform
import statistics
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from intnacl import IntNaClLoss

Loss = Callable[[Tensor, Tensor], Tensor]


def plain(negatives: str, temperature: float = 0.5, tau_plus: float = 0.01) -> Loss:
    """Return the pair loss as it is usually written, with the full similarity matrix."""

    def loss(z0: Tensor, z1: Tensor) -> Tensor:
        z = F.normalize(torch.cat([z0, z1]))
        rows, count = len(z), len(z) - 2
        own = torch.eye(rows, dtype=torch.bool, device=z.device)
        own = own | own.roll(rows // 2, 0)
        kappa = torch.exp(z @ z.T / temperature)
        positive = torch.exp((z * z.roll(rows // 2, 0)).sum(-1) / temperature)
        kappa = kappa.masked_fill(own, 0)
        if negatives == "g0":
            return -(positive / (positive + kappa.sum(1))).log().mean()
        mean = (kappa * kappa).sum(1) / kappa.sum(1)
        g = ((mean - tau_plus * positive) / (1 - tau_plus)).clamp(min=math.exp(-1 / temperature))
        return -(positive / (positive + count * g)).log().mean()

    return loss


def other_libraries(pairs: int) -> dict[str, Loss]:
    """Return NT-Xent of the other libraries that are installed."""
    found: dict[str, Loss] = {}
    try:
        from lightly.loss import NTXentLoss as Lightly

        found["lightly NTXentLoss"] = Lightly(temperature=0.5)
    except ImportError:
        pass
    try:
        from pytorch_metric_learning.losses import NTXentLoss as MetricLearning

        if pairs <= 256:  # its memory grows with the cube of the pairs: 1 GiB at 256 pairs
            metric = MetricLearning(temperature=0.5)
            found["pytorch-metric-learning NTXentLoss"] = lambda a, b: metric(
                torch.cat([a, b]), torch.arange(len(a), device=a.device).repeat(2)
            )
    except ImportError:
        pass
    return found


def step(loss: Loss, views: list[Tensor]) -> float:
    """Return the seconds of one forward and backward pass."""
    on_gpu = views[0].is_cuda
    torch.cuda.synchronize() if on_gpu else None
    start = time.perf_counter()
    torch.autograd.grad(loss(*views), views)
    torch.cuda.synchronize() if on_gpu else None
    return time.perf_counter() - start


def kept_mib(loss: Loss, views: list[Tensor]) -> float:
    """Return the MiB that autograd saves between forward and backward, each storage counted once."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = loss(*views)
    del result
    return sum(storages.values()) / 2**20


def compare(name: str, baseline: Loss, others: dict[str, Loss], pairs: int, runs: int, device: str) -> None:
    views = [torch.randn(pairs, 128, device=device, requires_grad=True) for _ in range(2)]
    losses = {f"plain {name}": baseline} | others
    for loss in losses.values():
        step(loss, views)
    times: dict[str, list[float]] = {key: [] for key in losses}
    for _ in range(runs):
        for key, loss in losses.items():
            times[key].append(step(loss, views))
    unit = statistics.median(times[f"plain {name}"])
    for key, loss in losses.items():
        ratio = statistics.median(times[key]) / unit
        print(f"| {pairs:>5} | {key:<38} | {ratio:>10.2f} | {kept_mib(loss, views):>12.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pairs", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else f"{platform.machine()} CPU"
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, 128-d float32\n")
    print("| pairs | loss                                   | time ratio | kept MiB     |")
    print("|-------|----------------------------------------|------------|--------------|")
    for pairs in arguments.pairs:
        runs = arguments.runs if pairs <= 1024 else max(3, arguments.runs // 5)
        ours_g0, ours_g2 = IntNaClLoss.preset("simclr"), IntNaClLoss.preset("debiased_hardneg")
        compare(
            "g0",
            plain("g0"),
            {"intnacl g0": ours_g0, **other_libraries(pairs)},
            pairs,
            runs,
            arguments.device,
        )
        compare("g2", plain("g2"), {"intnacl g2": ours_g2}, pairs, runs, arguments.device)


if __name__ == "__main__":
    main()
