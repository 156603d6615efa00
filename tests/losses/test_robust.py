"""The robust term's weights."""

import torch

from intnacl.losses.nacl import base_rows
from intnacl.losses.negatives import Pair
from intnacl.losses.robust import adversarial_weight, robust_rows


def pair() -> Pair:
    return Pair(torch.randn(6, requires_grad=True), torch.randn(6))


def test_weight_one_leaves_the_base_loss() -> None:
    attacked = pair()
    torch.testing.assert_close(robust_rows(attacked, adversarial_weight(pair(), "one")), base_rows(attacked))


def test_weight_is_the_clean_loss_of_the_row() -> None:
    clean, attacked = pair(), pair()
    expected = base_rows(clean) * base_rows(attacked)
    torch.testing.assert_close(robust_rows(attacked, adversarial_weight(clean, "loss")), expected)


def test_the_relative_weight_is_the_clean_loss_over_its_mean_and_a_constant() -> None:
    clean = pair()
    w_R = adversarial_weight(clean, "relative")
    torch.testing.assert_close(w_R * base_rows(clean).mean(), base_rows(clean))
    assert not w_R.requires_grad


def test_only_the_attached_weight_carries_a_gradient() -> None:
    assert adversarial_weight(pair(), "loss").requires_grad
    assert not adversarial_weight(pair(), "loss", detach=True).requires_grad
