"""Time of the linear probe on random features: python benchmarks/probe.py --device cuda

Times are of training alone, per 1000 epochs, the median over repeats; the first run, which also initialises
the device's libraries, is shown separately. Our hand-written step is compared with nn.Linear, autograd and
fused Adam.
"""

import argparse
import platform
import statistics
import time

import torch
from torch import Tensor, nn

from intnacl.evaluation.logistic import Problem, adam, pad_columns


def random_problem(n: int, test: int, features: int, classes: int, device: str) -> Problem:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n + test, features, generator=generator).to(device)
    y = torch.randint(classes, (n + test,), generator=generator).to(device)
    return Problem(
        x=pad_columns(x[:n]),
        y=y[:n],
        test_x=pad_columns(x[n:]),
        test_y=y[n:],
        features=features,
        classes=classes,
    )


def usual_training(problem: Problem, epochs: int, batch: int) -> None:
    """Train in the usual way: a loop over batches, autograd, an optimiser."""
    layer = nn.Linear(problem.features, problem.classes, device=problem.x.device)
    optimizer = torch.optim.Adam(layer.parameters(), lr=3e-4, fused=problem.x.is_cuda)
    x = problem.x[:, : problem.features].contiguous()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), device=x.device).split(batch)[: len(x) // batch]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(layer(x[rows]), problem.y[rows]).backward()
            optimizer.step()


def seconds(run, device: str) -> float:
    def finish() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    finish()
    start = time.perf_counter()
    run()
    finish()
    return time.perf_counter() - start


def profile(problem: Problem, batch: int, rows: int = 12) -> str:
    """Return a table of the GPU time of one epoch by kernel."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        adam(problem, epochs=5, batch_size=batch, lr=3e-4, l2=0.0, seed=0)
        torch.cuda.synchronize()
    return profiler.key_averages().table(sort_by="self_device_time_total", row_limit=rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--usual-epochs", type=int, default=3, help="epochs of the usual loop, 0 to skip it")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--n", type=int, default=50_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--profile", action="store_true", help="print the kernels of an epoch (CUDA)")
    args = parser.parse_args()
    name = torch.cuda.get_device_name() if args.device.startswith("cuda") else platform.machine()
    shape = f"{args.n} x {args.features} -> {args.classes}, batch {args.batch_size}"
    print(f"torch {torch.__version__}, {name}, {shape}")
    problem = random_problem(args.n, args.test, args.features, args.classes, args.device)
    steps = args.n // args.batch_size

    def show(what: str, times: list[float], epochs: int) -> None:
        second, spread = statistics.median(times), max(times) - min(times)
        total = f"{second * 1000 / epochs:8.2f} s per 1000 epochs"
        spread_of_n = f"range {spread * 1000 / epochs:.2f}, n = {len(times)}"
        print(f"{what:<24} {total} ({spread_of_n}), {second / epochs / steps * 1e6:7.1f} us per step")

    def ours() -> tuple[Tensor, list[int]]:
        return adam(problem, epochs=args.epochs, batch_size=args.batch_size, lr=3e-4, l2=0.0, seed=0)

    show("hand-written, first run", [seconds(ours, args.device)], args.epochs)
    show("hand-written", [seconds(ours, args.device) for _ in range(args.repeats)], args.epochs)
    if args.usual_epochs:
        usual_training(problem, 1, args.batch_size)
        times = [
            seconds(lambda: usual_training(problem, args.usual_epochs, args.batch_size), args.device)
            for _ in range(args.repeats)
        ]
        show("nn.Linear + autograd", times, args.usual_epochs)
    if args.profile:
        print(profile(problem, args.batch_size))


if __name__ == "__main__":
    main()
