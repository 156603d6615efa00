"""Similarities: unit rows, and log-means that are accurate at any temperature."""

import torch

from intnacl.losses.similarity import log_mean_negatives, normalize


def test_far_away_negatives_at_a_low_temperature_are_not_lost():
    row = torch.tensor([1.0, 0.0])
    z = torch.stack([row, -row, row, -row])  # every negative lies opposite: κ = e^(−100)
    torch.testing.assert_close(log_mean_negatives(z, z * 1, 0.01, 1.0), torch.full((4,), -100.0))


def test_normalize_keeps_zero_vectors_at_zero_does_not_take_overflow_for_zero_and_is_float32_or_better():
    z = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3e19, 4e19]], requires_grad=True)
    unit = normalize(z)
    torch.testing.assert_close(unit[:2], torch.tensor([[0.0, 0.0], [0.6, 0.8]]))
    assert unit[2].isnan().all()
    (gradient,) = torch.autograd.grad(unit[:2].sum(), z)
    assert gradient[0].tolist() == [0.0, 0.0]
    assert gradient[1].isfinite().all()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert normalize(torch.ones(2, 3, dtype=dtype)).dtype == torch.promote_types(dtype, torch.float32)
