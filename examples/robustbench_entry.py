"""Evaluate a run's classifier by RobustBench's own `benchmark`, and write an entry for its leaderboard.

In an environment with intnacl and robustbench (pip install git+https://github.com/RobustBench/robustbench):

    python examples/robustbench_entry.py RUN --data DATA --images 20

DATA is torchvision's folder of CIFAR. `--protocol alf` uses the layer that was trained on attacked images.
"""

import argparse
import json
from pathlib import Path

import intnacl

EPS = 8 / 255


def entry(run, dataset, clean, robust, protocol=None):
    """Return the entry in RobustBench's format; link, name, authors and venue are left to fill in."""
    result = run.result or {"attacks": []}
    own = [
        row["accuracy"]
        for row in result["attacks"]
        if (row["dataset"], row["name"], round(row["eps"], 6)) == (dataset, "autoattack", round(EPS, 6))
        and protocol in (None, row.get("protocol", "slf"))
    ]
    architectures = {"resnet18": "ResNet-18", "resnet34": "ResNet-34", "resnet50": "ResNet-50"}
    return {
        "link": "", "name": "", "authors": "", "additional_data": False, "number_forward_passes": 1,
        "dataset": dataset, "venue": "", "eps": "8/255",
        "architecture": architectures.get(run.config.encoder.name, run.config.encoder.name),
        "clean_acc": f"{100 * clean:.2f}", "reported": f"{own[0]:.2f}" if own else "",
        "autoattack_acc": f"{100 * robust:.2f}", "unreliable": False,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", default="data")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--protocol", choices=("slf", "alf", "aff"))
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    from robustbench.eval import benchmark

    run = intnacl.open_run(given.run, device=given.device)
    dataset, model = run.config.dataset, run.classifier(protocol=given.protocol)
    clean, robust = benchmark(
        model, n_examples=given.images, dataset=dataset, threat_model="Linf", eps=EPS, data_dir=given.data,
        device=run.device, batch_size=256,
    )  # fmt: skip
    path = given.run / "robustbench.json"
    path.write_text(json.dumps(entry(run, dataset, clean, robust, given.protocol), indent=2) + "\n")
    print(f"{given.images} images, clean {clean:.2%}, AutoAttack {robust:.2%}: {path}")


if __name__ == "__main__":
    main()
