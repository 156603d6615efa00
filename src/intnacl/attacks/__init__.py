"""Attacks in pixel space: FGSM and PGD on any loss, the adversarial training view, AutoAttack."""

from intnacl.attacks.gradient import cross_entropy, fgsm, input_gradient, pgd
from intnacl.attacks.training_view import adversarial_view

__all__ = ["adversarial_view", "cross_entropy", "fgsm", "input_gradient", "pgd"]
