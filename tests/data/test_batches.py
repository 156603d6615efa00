"""Batches: every image once per epoch, and any step without computing earlier ones."""

import torch

from intnacl.data.batches import batch_indices, permutation, rank_rows, steps_per_epoch
from mistakes import refused


def test_an_epoch_visits_each_image_at_most_once_and_drops_the_rest():
    assert steps_per_epoch(103, 10) == 10
    for epoch in (0, 1, 5):
        seen = torch.cat([batch_indices(0, 10 * epoch + i, 103, 10) for i in range(10)])
        assert len(seen.unique()) == 100
        assert seen.min() >= 0
        assert seen.max() < 103


def test_indices_equal_recorded_ones_so_that_runs_resume_under_any_version():
    assert batch_indices(0, 0, 10, 4).tolist() == [7, 5, 3, 8]
    assert batch_indices(0, 2, 10, 4).tolist() == [0, 3, 1, 2]
    first = batch_indices(123, 1_000_000, 50_000, 256)[:6]
    assert first.tolist() == [45309, 7018, 37132, 24277, 36669, 41811]


def test_the_permutation_is_uniform():
    position = torch.stack([permutation(seed, 0, 6) for seed in range(3000)])
    counts = torch.stack([(position == image).sum(0) for image in range(6)])
    assert (counts - 500).abs().max() < 4.5 * (3000 * 5 / 36) ** 0.5


def test_epochs_and_seeds_differ_and_any_step_is_computed_without_earlier_ones():
    first = batch_indices(0, 0, 1000, 100)
    assert not torch.equal(first, batch_indices(0, 10, 1000, 100))
    assert not torch.equal(first, batch_indices(1, 0, 1000, 100))
    before = first.clone()
    first.zero_()  # a caller may write into its batch
    assert torch.equal(batch_indices(0, 0, 1000, 100), before)
    replayed = [batch_indices(3, step, 50, 8) for step in range(40)]
    permutation.cache_clear()
    assert torch.equal(batch_indices(3, 39, 50, 8), replayed[39])


def test_ranks_share_the_batch_and_a_halo_of_the_rows_before_wraps_around():
    rows = torch.cat([rank_rows(rank, 4, 16) for rank in range(4)])
    assert torch.equal(rows, torch.arange(16))
    assert rank_rows(0, 4, 16, halo=2).tolist() == [14, 15, 0, 1, 2, 3]
    assert rank_rows(3, 4, 16, halo=2).tolist() == [10, 11, 12, 13, 14, 15]


test_wrong_batches_are_explained = refused(
    batch_indices, (0, 0, 10, 20, r"batch_size=20.*n=10"), (0, 0, 10, 0, r"batch_size=0")
)
test_wrong_rows_are_explained = refused(
    lambda world, batch, halo: rank_rows(0, world, batch, halo=halo),
    (3, 10, 0, r"batch_size=10 is that of all ranks: .* by their number, 3"),
    (1, 4, 4, r"4 mixed views.*at least 5"),
)
