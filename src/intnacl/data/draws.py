"""Random numbers as a pure function of (seed, step, view, row): the counter-based generator Philox4x32-10.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A counter of four 32-bit words is
mixed with a key of two in ten rounds of multiply and xor. There is no state: any rank can compute any draw of
any step directly, on any device. All arithmetic is exact int64: CPU and GPU, eager and compiled agree bit
for bit.

Shapes: B rows, K numbers per row, Q = ceil(K / 4) counter blocks per row.
"""

import torch
from torch import Tensor

from intnacl.errors import InputError

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def _multiply(a: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return the high and low word of a·m, computed by 16-bit halves of m so that no int64 overflows."""
    low, high = a * (m & 0xFFFF), a * (m >> 16)
    return (high + (low >> 16)) >> 16, (low + ((high & 0xFFFF) << 16)) & _MASK


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Return Philox4x32-10 of four counter words and two key words: int64 in [0, 2³²), which broadcast."""
    c0, c1, c2, c3 = counter
    rounds_R = torch.arange(_ROUNDS, device=c0.device)
    keys = [
        ((word[..., None] + rounds_R * weyl) & _MASK).unbind(-1)
        for word, weyl in zip(key, _WEYL, strict=True)
    ]
    for k0, k1 in zip(*keys, strict=True):
        (high0, low0), (high1, low1) = _multiply(c0, _MULTIPLIERS[0]), _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


def words(seed: int | Tensor, step: int | Tensor, view: int | Tensor, rows_B: Tensor, count: int) -> Tensor:
    """Return `count` random 32-bit words per row: int64 (B, count).

    The counter is (block, row, step, view), each below 2³², and the key is the seed, any int64. Seed, step
    and view may be numbers, or tensors on the rows' device with one number in all or one per row.
    """
    block_Q = torch.arange((count + 3) // 4, device=rows_B.device)
    row_B1, step_11, view_B1, seed_11 = (_column(value, rows_B) for value in (rows_B, step, view, seed))
    key = (seed_11 & _MASK, (seed_11 >> 32) & _MASK)
    out = philox((block_Q, row_B1, step_11, view_B1), key)
    shape = (len(rows_B), len(block_Q))
    out_BQ4 = torch.stack([word.expand(shape) for word in out], dim=-1)
    return out_BQ4.flatten(1)[:, :count]


def check_seed(argument: str, seed: int) -> None:
    """Raise unless the seed is an int64."""
    if not -(2**63) <= seed < 2**63:
        raise InputError(f"{argument}={seed} is out of range: it must fit into a signed 64-bit integer.")


def uniform(seed: int | Tensor, step: int | Tensor, view: int | Tensor, rows_B: Tensor, count: int) -> Tensor:
    """Return `count` uniform numbers per row, float32 (B, count) in [0, 1), each a multiple of 2⁻²⁴."""
    return (words(seed, step, view, rows_B, count) >> 8).to(torch.float32) * 2.0**-24


def _column(value: int | Tensor, like: Tensor) -> Tensor:
    """Return a number, or a tensor of one or of one per row, as an int64 column on `like`'s device."""
    if not isinstance(value, Tensor):
        value = torch.full((1,), value, dtype=torch.int64, device=like.device)
    return value.to(torch.int64).reshape(-1, 1)
