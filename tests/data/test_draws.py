"""The counter-based generator: published test vectors, and a draw for every key."""

import pytest
import torch

from intnacl.data import draws
from intnacl.data.draws import philox, uniform, words

# Known answers published with Random123 for philox4x32-10: counter, key, output.
FULL = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((FULL,) * 4, (FULL,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_answers(counter, key, expected):
    out = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(int(word) for word in out) == expected


def test_the_key_is_the_seed_and_the_counter_is_block_row_step_and_view():
    seed, step, view, row = 0x299F31D0_A4093822, 0x13198A2E, 0x03707344, 0x85A308D3
    out = words(seed, step, view, torch.tensor([5, row]), 7)
    for block in (0, 1):
        counter = tuple(map(torch.tensor, (block, row, step, view)))
        expected = torch.stack(philox(counter, (torch.tensor(0xA4093822), torch.tensor(0x299F31D0))))
        assert torch.equal(out[1, 4 * block : 4 * block + 4], expected[: len(out[1]) - 4 * block])


def test_uniform_is_in_the_half_open_unit_interval_and_flat():
    u = uniform(0, 0, 0, torch.arange(20_000), 9)
    assert u.dtype == torch.float32
    assert u.shape == (20_000, 9)
    assert u.min() >= 0
    assert u.max() < 1
    counts = torch.histc(u, bins=50, min=0, max=1)
    chi2 = float(((counts - u.numel() / 50) ** 2 / (u.numel() / 50)).sum())
    assert 20 < chi2 < 90  # 49 degrees of freedom: 99.9 % of draws lie between 24 and 85
    correlation = torch.corrcoef(u.T) - torch.eye(9)
    assert correlation.abs().max() < 4 / 20_000**0.5


def test_a_row_draws_the_same_alone_in_a_batch_and_by_tensor_step_or_view():
    rows = torch.arange(64)
    u = uniform(7, 3, 1, rows, 10)
    assert torch.equal(u[10:20], uniform(7, torch.tensor(3), 1, rows[10:20], 10))
    assert torch.equal(u, uniform(7, 3, torch.ones(64, dtype=torch.int64), rows, 10))
    assert torch.equal(u[:, :5], uniform(7, 3, 1, rows, 5))
    assert (u == uniform(-7, 3, 1, rows, 10)).float().mean() < 0.01


def test_the_largest_word_is_below_one(monkeypatch):
    monkeypatch.setattr(draws, "words", lambda *key: torch.tensor([[0, 2**32 - 1]]))
    assert uniform(0, 0, 0, torch.arange(1), 2).tolist() == [[0, 1 - 2**-24]]


@pytest.mark.filterwarnings("default")  # the compiler has its own
def test_compiled_equals_eager_for_any_seed_and_step():
    compiled = torch.compile(uniform, fullgraph=True)
    rows = torch.arange(100)
    for seed, step in ((1, 0), (2, 1), (2**40 + 3, 2**31)):
        assert torch.equal(compiled(seed, torch.tensor(step), 1, rows, 6), uniform(seed, step, 1, rows, 6))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_draws_the_same_bits():
    rows, step = torch.arange(1000), torch.tensor(11, device="cuda")
    drawn = uniform(2**40 + 1, step, 3, rows.cuda(), 37).cpu()
    assert torch.equal(drawn, uniform(2**40 + 1, 11, 3, rows, 37))
