"""Attack a run's classifier with foolbox: `python examples/foolbox_attacks.py RUN [--images 100]`."""

import argparse

import foolbox
import torch

import intnacl
from intnacl.data import load

ATTACKS = {
    "FGSM": foolbox.attacks.LinfFastGradientAttack(),
    "PGD": foolbox.attacks.LinfProjectedGradientDescentAttack(rel_stepsize=0.25, steps=20),
    "DeepFool": foolbox.attacks.LinfDeepFoolAttack(),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--eps", type=float, nargs="+", default=[0.02, 0.05, 0.1])
    args = parser.parse_args()
    run = intnacl.open_run(args.run)
    test = load(args.dataset, "test")
    images = test.images[: args.images].to(run.device) / 255
    labels = test.labels[: args.images].to(run.device)
    torch.manual_seed(0)
    # The classifier takes pixels in [0, 1] and normalises them itself.
    model = foolbox.PyTorchModel(run.classifier(args.dataset), bounds=(0, 1), device=run.device)
    print(f"clean: {foolbox.accuracy(model, images, labels):.1%}")
    for name, attack in ATTACKS.items():
        _, _, fooled = attack(model, images, labels, epsilons=args.eps)
        robust = 1 - fooled.float().mean(1)
        print(f"{name}:", ", ".join(f"eps {e:g}: {a:.1%}" for e, a in zip(args.eps, robust, strict=True)))


if __name__ == "__main__":
    main()
