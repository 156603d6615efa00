"""The GPU kernels of `fused_stem`, in Triton: a 3×3 convolution of few channels, its weights' gradient.

A place of the result sees 9·C numbers of x, its patch; patches are gathered where they are needed and make
two matrix products of what remains. N places are dealt out in tiles of ROWS, T ≥ 9·C numbers a patch.
"""

import triton
import triton.language as tl


@triton.jit
def convolve(
    x, weight, y, N, H, W, x_image, x_channel, x_row, x_column,
    C: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """y (N, K) = patches (N, T) · weight (K, 9·C)ᵀ, for one tile."""
    places = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outputs, taps = tl.arange(0, K), tl.arange(0, T)
    patches = _patches(x, places, taps, N, H, W, x_image, x_channel, x_row, x_column, C)
    known = (taps < 9 * C)[:, None] & (outputs < K)[None, :]
    weights = tl.load(weight + outputs[None, :] * 9 * C + taps[:, None], known, other=0.0)
    result = tl.dot(patches.to(weights.dtype), weights)
    offsets = places.to(tl.int64)[:, None] * K + outputs[None, :]
    tl.store(y + offsets, result.to(y.dtype.element_ty), (places < N)[:, None])


@triton.jit
def weight_sums(
    x, dy, out, N, H, W, x_image, x_channel, x_row, x_column,
    C: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, T: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out (programs, K, T): a program's part of dyᵀ (K, N) · patches (N, T)."""
    outputs, taps = tl.arange(0, K), tl.arange(0, T)
    total = tl.zeros((K, T), tl.float32)
    tiles = tl.cdiv(N, ROWS)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=STAGES):
        places = tile * ROWS + tl.arange(0, ROWS)
        offsets = places.to(tl.int64)[:, None] * K + outputs[None, :]
        d = tl.load(dy + offsets, (places < N)[:, None], other=0.0)
        patches = _patches(x, places, taps, N, H, W, x_image, x_channel, x_row, x_column, C)
        total += tl.dot(tl.trans(d), patches.to(d.dtype))
    tl.store(out + (tl.program_id(0) * K + outputs)[:, None] * T + taps[None, :], total)


@triton.jit
def _patches(x, places, taps, N, H, W, x_image, x_channel, x_row, x_column, C: tl.constexpr):
    """What each place sees of x (ROWS, T), tap by tap: row, column, channel; 0 outside of the image."""
    row, column, channel = taps // (3 * C) - 1, taps // C % 3 - 1, taps % C
    i, j = places // W % H, places % W
    rows, columns = i[:, None] + row[None, :], j[:, None] + column[None, :]
    inside = (rows >= 0) & (rows < H) & (columns >= 0) & (columns < W)
    inside = inside & (taps < 9 * C)[None, :] & (places < N)[:, None]
    image = (places // (H * W)).to(tl.int64) * x_image
    offsets = image[:, None] + rows * x_row + columns * x_column + (channel * x_channel)[None, :]
    return tl.load(x + offsets, inside, other=0.0)
