"""This package's NCA against scikit-learn's, in one run: accuracy on small tables, seconds at n = 10,000.

    python benchmarks/nca.py [--points 10000] [--iterations 3] [--rounds 2] [--device cpu]

Both get the same standardised points, start, iterations and tolerance. Accuracy is that of nearest
neighbours, in percent: leave-one-out on the training points, and on held-out points (a random half, five
splits). Memory is the peak of a process that does nothing else, including imports and data.
"""

import argparse
import platform
import subprocess
import sys
import time

import numpy as np
import sklearn
import torch
from sklearn.datasets import make_classification
from sklearn.model_selection import ShuffleSplit
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis

from intnacl.theory.comparison import load_table
from intnacl.theory.nca import NCA
from intnacl.theory.neighbours import leave_one_out_accuracy


def methods(components, iterations, device):
    return {
        "scikit-learn": NeighborhoodComponentsAnalysis(components, max_iter=iterations, random_state=0),
        "intnacl tv": NCA(components, objective="tv", max_iter=iterations, random_state=0, device=device),
        "intnacl kl": NCA(components, objective="kl", max_iter=iterations, random_state=0, device=device),
    }


def held_out(method, X, y):
    scores = []
    for train, test in ShuffleSplit(5, test_size=0.5, random_state=0).split(X):
        z = method.fit(X[train], y[train]).transform(X)
        scores.append(100 * KNeighborsClassifier(5).fit(z[train], y[train]).score(z[test], y[test]))
    return f"{np.mean(scores):6.2f} ± {np.std(scores):.2f}"


def accuracy(device):
    print(f"{'table':8} {'D':>3} {'method':14} {'LOO 1-NN':>8} {'LOO 5-NN':>8} {'held-out 5-NN':>14}")
    for name, components in (
        ("iris", 2),
        ("iris", 4),
        ("wine", 2),
        ("wine", 13),
        ("digits", 2),
        ("digits", 16),
    ):
        X, y = load_table(name)
        for label, method in methods(components, 50, device).items():
            z = torch.tensor(method.fit(X, y).transform(X))
            one, five = (100 * leave_one_out_accuracy(z, torch.tensor(y), k) for k in (1, 5))
            print(
                f"{name:8} {components:3} {label:14} {one:8.2f} {five:8.2f} {held_out(method, X, y):>14}",
                flush=True,
            )


def fit_once(label, points, iterations, device):
    """Print the seconds of one fit in this process, and the process's peak resident memory in MiB."""
    import resource

    X, y = make_classification(points, 64, n_informative=20, n_classes=10, random_state=0)
    method = methods(16, iterations, device)[label]
    method.fit(X[:200], y[:200])  # a warm-up, which also imports
    start = time.perf_counter()
    method.fit(X, y)
    seconds = time.perf_counter() - start
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def speed(points, iterations, device, rounds):
    """Print the fastest of a few fits of each method, which take turns on a possibly busy machine."""
    print(f"\n{points} points, 64 features, 16 components, 10 classes, float64, {iterations} iterations")
    print(f"{'method':14} {'seconds':>8} {'times faster':>12} {'peak MiB':>9}")
    labels = list(methods(1, 1, device))
    runs = [{label: fit_alone(label, points, iterations, device) for label in labels} for _ in range(rounds)]
    best = {label: min(run[label] for run in runs) for label in labels}
    reference = best["scikit-learn"][0]
    for label, (seconds, memory) in best.items():
        print(f"{label:14} {seconds:8.2f} {reference / seconds:12.2f} {memory:9.0f}", flush=True)


def fit_alone(label, points, iterations, device):
    """Run `fit_once` in a new process, and return its seconds and peak MiB."""
    arguments = {"--only": label, "--points": points, "--iterations": iterations, "--device": device}
    flags = [str(part) for pair in arguments.items() for part in pair]
    done = subprocess.run([sys.executable, __file__, *flags], capture_output=True, text=True, check=True)
    seconds, memory = map(float, done.stdout.split())
    return seconds, memory


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        fit_once(options.only, options.points, options.iterations, options.device)
        return
    versions = f"torch {torch.__version__}, scikit-learn {sklearn.__version__}"
    print(f"{platform.machine()}, {torch.get_num_threads()} threads, {versions}, device {options.device}")
    accuracy(options.device)
    speed(options.points, options.iterations, options.device, options.rounds)


if __name__ == "__main__":
    main()
