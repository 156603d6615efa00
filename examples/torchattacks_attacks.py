"""Attack a run's classifier with torchattacks: `python examples/torchattacks_attacks.py RUN [--eps 0.05]`."""

import argparse

import torch
import torchattacks

import intnacl
from intnacl.data import load


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--eps", type=float, default=0.05)
    args = parser.parse_args()
    run = intnacl.open_run(args.run)
    test = load(args.dataset, "test")
    images = test.images[: args.images].to(run.device) / 255
    labels = test.labels[: args.images].to(run.device)
    torch.manual_seed(0)
    model = run.classifier(args.dataset)  # takes pixels in [0, 1] and normalises them itself
    attacks = {
        "clean": torchattacks.VANILA(model),
        "FGSM": torchattacks.FGSM(model, eps=args.eps),
        "PGD": torchattacks.PGD(model, eps=args.eps, alpha=args.eps / 4, steps=20),
        "MI-FGSM": torchattacks.MIFGSM(model, eps=args.eps, alpha=args.eps / 4, steps=10),
    }
    for name, attack in attacks.items():
        predicted = model(attack(images, labels)).argmax(1)
        print(f"{name}: {(predicted == labels).float().mean():.1%}")


if __name__ == "__main__":
    main()
