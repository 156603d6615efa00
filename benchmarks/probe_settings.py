"""Measure how much the training of the linear layer affects the figures of one encoder.

    python benchmarks/probe_settings.py RUN --device cuda --out settings.json

Clean accuracy hardly depends on the training of the probe. Accuracy under attack depends on the margin of the
classifier, and thereby on every setting. Each row is a setting, with test accuracy after the last and after
the best epoch, and accuracy under FGSM with the layer of the last epoch, on the data sets of the run.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from intnacl.attacks.named import named_attack
from intnacl.data.augment import augment
from intnacl.data.augmentations import AUGMENTATIONS, AugmentConfig
from intnacl.evaluation import probe, robustness
from intnacl.evaluation.features import extract_pair
from intnacl.evaluation.precision import exact_float32
from intnacl.evaluation.probe import ProbeConfig
from intnacl.runs.images import pair
from intnacl.runs.opened import Run, open_run

SETTINGS = {
    **{f"{epochs} epochs": ProbeConfig(epochs=epochs) for epochs in (100, 200, 300, 500, 1000)},
    "100 epochs, standardised features": ProbeConfig(epochs=100, standardize=True),
    "1000 epochs, standardised features": ProbeConfig(standardize=True),
    "1000 epochs, features of length 1": ProbeConfig(normalize=True),
    "1000 epochs, features of length 1, rate 1e-3": ProbeConfig(normalize=True, lr=1e-3),
    "1000 epochs, rate 1e-4": ProbeConfig(lr=1e-4),
    "1000 epochs, batch 1024": ProbeConfig(batch_size=1024),
    "1000 epochs, rate 1e-3": ProbeConfig(lr=1e-3),
    "100 epochs, batch 512, rate 1e-3, decay 1e-6": ProbeConfig(epochs=100, batch_size=512, lr=1e-3, l2=1e-6),
    "1000 epochs, decay 1e-4": ProbeConfig(l2=1e-4),
    "1000 epochs, decay 3e-4": ProbeConfig(l2=3e-4),
    "1000 epochs, decay 1e-3": ProbeConfig(l2=1e-3),
    "L-BFGS, decay 1e-4": ProbeConfig(solver="lbfgs", l2=1e-4),
}
PASSES = 20  # over the images, each with new augmentations, for probes on augmented images
EPS = 0.002


def augmented_features(run: Run, images: Tensor, config: AugmentConfig) -> Tensor:
    """Return the features (PASSES·N, F) of augmented images, with the encoder in eval mode."""
    images = images.to(run.device)
    encoder = run.encoder.eval()
    rows = torch.arange(len(images), device=run.device)
    features = []
    with torch.no_grad():
        for step in range(PASSES):
            clock = torch.tensor(step, device=run.device)
            for part in torch.split(rows, 1000):
                views = augment(images[part], config, seed=0, step=clock, view=0, rows=part)
                features.append(encoder(views))
    return torch.cat(features)


def problems(run: Run, train: Any, test: Any, epochs: int | None) -> Iterator[tuple[str, ProbeConfig, Any]]:
    """Yield the names, the settings, and the trained layers with their figures."""
    features, test_features = extract_pair(
        run.encoder, pair(train), pair(test), batch_size=512, device=run.device
    )
    for name, config in SETTINGS.items():
        config = replace(config, epochs=epochs or config.epochs)
        yield name, config, probe.fit(features, train.labels, test_features, test.labels, config)
    for name, recipe in {
        "the run's": run.config.augment,
        "crop and flip": AUGMENTATIONS["crop_flip"],
    }.items():
        features = augmented_features(run, train.images, recipe)
        config = ProbeConfig(epochs=epochs or 1000 // PASSES)
        labels = train.labels.repeat(PASSES)
        yield (
            f"1000 epochs, augmented images ({name})",
            config,
            probe.fit(features, labels, test_features, test.labels, config),
        )


def measure(run: Run, dataset: str, epochs: int | None) -> Iterator[dict[str, Any]]:
    train, test = run.images.labelled(dataset)
    for name, config, (linear, figures) in problems(run, train, test, epochs):
        classifier = probe.Classifier(run.encoder, linear, normalize=config.normalize).eval()
        attacked = robustness.evaluate(
            classifier, *pair(test), [named_attack("fgsm", EPS)], batch_size=500, device=run.device
        )
        yield {
            "dataset": dataset, "setting": name, "clean": figures["accuracy"],
            "best": figures.get("best_accuracy"), "best_epoch": figures.get("best_epoch"),
            "train": figures["train_accuracy"], "fgsm": attacked["attacks"][0]["accuracy"],
        }  # fmt: skip


def line(row: dict[str, Any]) -> str:
    best = "–" if row["best"] is None else f"{row['best']:.2f} ({row['best_epoch']})"
    return f"| {row['dataset']} | {row['setting']} | {row['clean']:.2f} | {best} | {row['fgsm']:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run folder with a trained encoder")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, help="epochs of every probe, for a quick trial")
    parser.add_argument("--out", type=Path, help="a JSON file for the rows")
    args = parser.parse_args()
    run = open_run(args.run, device=args.device)
    print(f"| data set | setting | clean | best (epoch) | FGSM {EPS} |\n|---|---|---|---|---|")
    rows = []
    with exact_float32():
        for dataset in run.datasets:
            for row in measure(run, dataset, args.epochs):
                rows.append(row)
                print(line(row), flush=True)
                if args.out:
                    args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
