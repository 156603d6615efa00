"""The GPU kernels of the fused batch norm, in Triton.

x and all tensors like it are matrices in memory, P rows by C columns for each of V views. Reductions write
partial sums to S slots per view, and a second kernel adds the slots up in a fixed order, so equal runs give
equal bytes. Reductions walk from the last row to the first: the end of x is still in the cache from the
kernel that wrote it, and the next kernel reads the beginning first.

`stats` (4, V, C): mean μ, 1/σ, scale γ/σ, shift β − μγ/σ. `slopes` (2, V, C): b, c of dx = scale·d + b·x + c.
"""

import triton
import triton.language as tl

BLOCK = 8  # columns of a program that adds up slots
# Triton would compile the kernel again where one of these is 1 or a multiple of 16, for no gain in speed.
COUNTS = ["S", "V", "clean"]


@triton.jit(do_not_specialize=COUNTS)
def sums(x, out, P, C, S, clean, together, ROWS: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr):
    """Add up Σ (x − r) and Σ (x − r)² of a slot's rows, r the first row of the view's group."""
    slot = tl.program_id(0)
    view = slot // S
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    first = tl.where(view < clean, view - view % together, view)
    r = tl.load(x + first.to(tl.int64) * P * C + columns, columns < C, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    squares = tl.zeros((ROWS, WIDTH), tl.float32)
    tiles = tl.cdiv(P, ROWS)
    for tile in tl.range(slot % S, tiles, S, num_stages=STAGES):
        offsets, inside = _tile(view, tiles - 1 - tile, columns, P, C, ROWS)
        value = tl.where(inside, tl.load(x + offsets, inside, other=0.0).to(tl.float32) - r, 0.0)
        total += value
        squares += value * value
    _store_sums(out, total, squares, slot, columns, C)


@triton.jit(do_not_specialize=COUNTS)
def statistics(
    x,
    sums,
    stats,
    weight,
    bias,
    mean,
    var,
    momentum,
    other_weight,
    other_bias,
    other_mean,
    other_var,
    other_momentum,
    eps,
    P,
    C,
    S,
    V,
    clean,
    together,
    GROUPS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Turn sums into each group's statistics; running ones take the groups one after the other.

    σ² = E (x − r)² − (E x − r)² takes one pass, and with r a row of x a large mean cancels no digits of it.
    """
    columns = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < C
    attacked, first, views, total, squares = _groups(sums, columns, C, S, V, clean, together, GROUPS, SLOTS)
    count = tl.maximum(views * P, 2).to(tl.float32)[:, None]
    r_offsets = first.to(tl.int64)[:, None] * P * C + columns[None, :]
    r = tl.load(x + r_offsets, (views > 0)[:, None] & inside[None, :], other=0.0).to(tl.float32)
    from_r = total / count
    mu = r + from_r
    sigma2 = _positive(squares / count - from_r * from_r)
    rstd = tl.rsqrt(sigma2 + eps)
    scale = _either(attacked, weight, other_weight, columns, inside) * rstd
    shift = _either(attacked, bias, other_bias, columns, inside) - mu * scale
    for view in range(together):
        offsets, here = _view(first + view, view < views, columns, C)
        tl.store(stats + offsets, mu, here)
        tl.store(stats + V * C + offsets, rstd, here)
        tl.store(stats + 2 * V * C + offsets, scale, here)
        tl.store(stats + 3 * V * C + offsets, shift, here)
    unbiased = sigma2 * count / (count - 1)
    plain = clean // together
    _move(mean, mu, momentum, 0, plain, columns, C, GROUPS)
    _move(var, unbiased, momentum, 0, plain, columns, C, GROUPS)
    _move(other_mean, mu, other_momentum, plain, plain + V - clean, columns, C, GROUPS)
    _move(other_var, unbiased, other_momentum, plain, plain + V - clean, columns, C, GROUPS)


@triton.jit(do_not_specialize=COUNTS)
def apply(
    x,
    shortcut,
    stats,
    y,
    P,
    C,
    V,
    ADDED: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Write y = max(x·scale + shift + shortcut, 0), without the shortcut or the maximum if not asked for."""
    view, offsets, inside, columns = _own_tile(P, C, ROWS, WIDTH)
    value = tl.load(x + offsets, inside, other=0.0).to(tl.float32)
    value = value * _row(stats, 2, V, view, C, columns) + _row(stats, 3, V, view, C, columns)
    if ADDED:
        value += tl.load(shortcut + offsets, inside, other=0.0).to(tl.float32)
    if RELU:
        value = _positive(value)
    tl.store(y + offsets, value.to(y.dtype.element_ty), inside)


@triton.jit(do_not_specialize=COUNTS)
def gradient_sums(
    first,
    second,
    x,
    y,
    kept,
    stats,
    out,
    P,
    C,
    S,
    V,
    TWO: tl.constexpr,
    ADDED: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Add up Σ d and Σ d (x − μ) of a slot's rows, d the gradient before the ReLU; store d for a shortcut."""
    slot = tl.program_id(0)
    view = slot // S
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    mean = _row(stats, 0, V, view, C, columns)
    scale, shift = _row(stats, 2, V, view, C, columns), _row(stats, 3, V, view, C, columns)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    products = tl.zeros((ROWS, WIDTH), tl.float32)
    tiles = tl.cdiv(P, ROWS)
    for tile in tl.range(slot % S, tiles, S, num_stages=STAGES):
        offsets, inside = _tile(view, tiles - 1 - tile, columns, P, C, ROWS)
        value = tl.load(x + offsets, inside, other=0.0).to(tl.float32)
        d = _gradient_at(first, second, offsets, inside, TWO)
        if ADDED:  # the shortcut's values are not kept: the result says where the ReLU was open
            d = tl.where(tl.load(y + offsets, inside, other=0.0) > 0, d, 0.0)
            tl.store(kept + offsets, d.to(kept.dtype.element_ty), inside)
        elif RELU:
            d = tl.where(value * scale + shift > 0, d, 0.0)
        total += d
        products += d * (value - mean)
    _store_sums(out, total, products, slot, columns, C)


@triton.jit(do_not_specialize=COUNTS)
def slopes(
    sums,
    stats,
    out,
    d_parameters,
    P,
    C,
    S,
    V,
    clean,
    together,
    GROUPS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Turn sums into b and c, and into the gradients of γ and β of the clean and the other set (4, C)."""
    columns = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < C
    attacked, first, views, total, products = _groups(sums, columns, C, S, V, clean, together, GROUPS, SLOTS)
    count = tl.maximum(views * P, 1).to(tl.float32)[:, None]
    offsets, here = _view(first, views > 0, columns, C)
    mean = tl.load(stats + offsets, here, other=0.0)
    rstd = tl.load(stats + V * C + offsets, here, other=0.0)
    scale = tl.load(stats + 2 * V * C + offsets, here, other=0.0)
    b = -scale * rstd * rstd * products / count
    c = -scale * total / count - b * mean
    for view in range(together):
        offsets, here = _view(first + view, view < views, columns, C)
        tl.store(out + offsets, b, here)
        tl.store(out + V * C + offsets, c, here)
    other, weights = attacked[:, None], products * rstd
    tl.store(d_parameters + columns, tl.sum(tl.where(other, 0.0, weights), 0), inside)
    tl.store(d_parameters + C + columns, tl.sum(tl.where(other, 0.0, total), 0), inside)
    tl.store(d_parameters + 2 * C + columns, tl.sum(tl.where(other, weights, 0.0), 0), inside)
    tl.store(d_parameters + 3 * C + columns, tl.sum(tl.where(other, total, 0.0), 0), inside)


@triton.jit(do_not_specialize=COUNTS)
def gradient(
    first,
    second,
    x,
    stats,
    slopes,
    dx,
    P,
    C,
    V,
    TWO: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Write dx = scale·d + b·x + c."""
    view, offsets, inside, columns = _own_tile(P, C, ROWS, WIDTH)
    value = tl.load(x + offsets, inside, other=0.0).to(tl.float32)
    scale = _row(stats, 2, V, view, C, columns)
    d = _gradient_at(first, second, offsets, inside, TWO)
    if RELU:
        d = tl.where(value * scale + _row(stats, 3, V, view, C, columns) > 0, d, 0.0)
    result = scale * d + _row(slopes, 0, V, view, C, columns) * value + _row(slopes, 1, V, view, C, columns)
    tl.store(dx + offsets, result.to(dx.dtype.element_ty), inside)


@triton.jit
def _tile(view, tile, columns, P, C, ROWS: tl.constexpr):
    """Return the offsets of a view's tile, and which of them exist."""
    rows = tile * ROWS + tl.arange(0, ROWS)
    offsets = view.to(tl.int64) * P * C + rows[:, None] * C + columns[None, :]
    return offsets, (rows < P)[:, None] & (columns < C)[None, :]


@triton.jit
def _own_tile(P, C, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return view, offsets, mask and columns of this program's tile."""
    tiles = tl.cdiv(P, ROWS)
    view = tl.program_id(0) // tiles
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    offsets, inside = _tile(view, tl.program_id(0) % tiles, columns, P, C, ROWS)
    return view, offsets, inside, columns


@triton.jit
def _row(table, which, V, view, C, columns):
    """Return table[which, view] as a row."""
    return tl.load(table + (which * V + view) * C + columns, columns < C, other=0.0)[None, :]


@triton.jit
def _gradient_at(first, second, offsets, inside, TWO: tl.constexpr):
    d = tl.load(first + offsets, inside, other=0.0).to(tl.float32)
    if TWO:
        d += tl.load(second + offsets, inside, other=0.0).to(tl.float32)
    return d


@triton.jit
def _store_sums(out, one, two, slot, columns, C):
    tl.store(out + slot * C + columns, tl.sum(one, 0), columns < C)
    tl.store(out + (tl.num_programs(0) + slot) * C + columns, tl.sum(two, 0), columns < C)


@triton.jit
def _groups(sums, columns, C, S, V, clean, together, GROUPS: tl.constexpr, SLOTS: tl.constexpr):
    """Return for each group if it is adversarial, its first view, its number of views (0: none), both sums.

    All slots are read at once: waiting for memory costs more than reading some that are not needed.
    """
    group, plain = tl.arange(0, GROUPS), clean // together
    attacked = group >= plain
    first = tl.where(attacked, clean + group - plain, group * together)
    views = tl.where(first < V, tl.where(attacked, 1, together), 0)
    slot = tl.arange(0, SLOTS)[None, :]
    offsets = ((first * S)[:, None] + slot)[:, :, None] * C + columns[None, None, :]
    inside = (slot < (views * S)[:, None])[:, :, None] & (columns < C)[None, None, :]
    one = tl.load(sums + offsets, inside, other=0.0)
    two = tl.load(sums + V * S * C + offsets, inside, other=0.0)
    return attacked, first, views, tl.sum(one, 1), tl.sum(two, 1)


@triton.jit
def _view(view, exists, columns, C):
    """Return the offsets of one view of each group in a row of a table, and which of them exist."""
    return view[:, None] * C + columns[None, :], exists[:, None] & (columns < C)[None, :]


@triton.jit
def _positive(value):
    """Return max(value, 0). NaN stays NaN, as with torch, so that a diverging run is noticed."""
    return tl.maximum(value, 0.0, tl.PropagateNan.ALL)


@triton.jit
def _either(attacked, own, other, columns, inside):
    """Load a parameter for each group, from its own set of layers."""
    one = tl.load(own + columns, inside, other=0.0)
    two = tl.load(other + columns, inside, other=0.0)
    return tl.where(attacked[:, None], two[None, :], one[None, :])


@triton.jit
def _move(running, new, momentum, begin, end, columns, C, GROUPS: tl.constexpr):
    """Move a running statistic towards those of groups `begin` to `end`, in turn."""
    inside = columns < tl.where(begin < end, C, 0)
    value = tl.load(running + columns, inside, other=0.0)
    for group in range(begin, end):
        one = tl.sum(tl.where((tl.arange(0, GROUPS) == group)[:, None], new, 0.0), 0)
        value += momentum * (one - value)
    tl.store(running + columns, value, inside)
