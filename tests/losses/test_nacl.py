"""NCA and MIXNCA at their limits, row by row."""

import torch

from intnacl.losses.nacl import base_rows, mix_rows, nca_rows
from intnacl.losses.negatives import Pair

PAIR = Pair(torch.tensor([1.0, -2.0, 0.3]), torch.tensor([2.0, 1.0, -0.5]))


def test_nca_with_copies_of_the_twin_equals_the_base_loss_when_the_negatives_count_m_times():
    for count in (1, 7):
        copies_RE = PAIR.positive_R[:, None].expand(3, count)
        torch.testing.assert_close(nca_rows(PAIR, copies_RE, "MN"), base_rows(PAIR))
        assert (nca_rows(PAIR, copies_RE, "N") < base_rows(PAIR) - 0.1).all()


def test_a_mixed_view_costs_least_where_omega_is_lambda():
    """−λ log Ω − (1 − λ) log(1 − Ω) is the cross-entropy of λ and Ω."""
    omega = torch.linspace(0.01, 0.99, 99)
    loss = mix_rows(Pair(omega.logit(), torch.zeros(99)), 0.7)
    torch.testing.assert_close(omega[loss.argmin()], torch.tensor(0.7))
