"""The kernels of triton.py: one program per tile, all its sums in registers. Needs triton.

Loops run over the tiles given by `Mask.keys`; `readable` is `Mask.tile`. Tensors are contiguous,
of at most 32-bit floats; sums are float32. WIDTH is C rounded up to a power of two.
Shapes: as in tiled.py; pointers are named after their tensors.
"""

import triton
import triton.language as tl


@triton.jit
def load_rows(base, rows, count, size, WIDTH: tl.constexpr):
    """(rows, WIDTH) of a (count, size) matrix, 0 outside of it."""
    places = tl.arange(0, WIDTH)
    inside = (rows < count)[:, None] & (places < size)[None, :]
    return tl.load(base + rows[:, None] * size + places[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(base, rows, count, size, tile, WIDTH: tl.constexpr):
    places = tl.arange(0, WIDTH)
    inside = (rows < count)[:, None] & (places < size)[None, :]
    tl.store(base + rows[:, None] * size + places[None, :], tile, mask=inside)


@triton.jit
def dot(a, b):
    """A product in full float32 for float32 inputs, without rounding to TF32."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def readable(
    rows, columns, queries, keys, offset, window, q_documents, k_documents, PACKED: tl.constexpr
):
    """(rows, columns) bool."""
    distance = rows[:, None] + offset - columns[None, :]
    inside = (rows < queries)[:, None] & (columns < keys)[None, :]
    allowed = inside & (distance >= 0) & (distance < window)
    if PACKED:
        asking = tl.load(q_documents + rows, mask=rows < queries, other=0)
        asked = tl.load(k_documents + columns, mask=columns < keys, other=0)
        allowed = allowed & (asking[:, None] == asked[None, :])
    return allowed


@triton.jit
def forward_kernel(
    q, k, v, out, lse, q_documents, k_documents,
    heads, group, queries, keys, size, offset, window, scale,
    PACKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Processes one tile of queries of one head, looping over tiles of keys."""
    first = tl.program_id(0) * ROWS
    head = tl.program_id(1).to(tl.int64)  # of B·H
    kv_head, batch = head // group, head // heads
    rows = first + tl.arange(0, ROWS)
    queries_tile = load_rows(q + head * queries * size, rows, queries, size, WIDTH)
    top = tl.full((ROWS,), -float("inf"), tl.float32)
    mass = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    start = tl.maximum(first + offset - window + 1, 0) // COLUMNS * COLUMNS
    for column in range(start, tl.minimum(keys, first + ROWS + offset), COLUMNS):
        columns = column + tl.arange(0, COLUMNS)
        keys_tile = load_rows(k + kv_head * keys * size, columns, keys, size, WIDTH)
        values_tile = load_rows(v + kv_head * keys * size, columns, keys, size, WIDTH)
        allowed = readable(
            rows, columns, queries, keys, offset, window,
            q_documents + batch * queries, k_documents + batch * keys, PACKED,
        )  # fmt: skip
        scores = tl.where(allowed, dot(queries_tile, tl.trans(keys_tile)) * scale, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(new_top == -float("inf"), 0.0, new_top)
        weights = tl.exp(scores - base[:, None])
        shrink = tl.exp(top - base)
        mass = mass * shrink + tl.sum(weights, 1)
        total = total * shrink[:, None] + dot(weights.to(values_tile.dtype), values_tile)
        top = new_top
    read = mass > 0
    total = total / tl.where(read, mass, 1.0)[:, None]
    found = tl.where(read, top + tl.log(tl.where(read, mass, 1.0)), -float("inf"))
    store_rows(out + head * queries * size, rows, queries, size, total, WIDTH)
    tl.store(lse + head * queries + rows, found, mask=rows < queries)


@triton.jit
def scores_gradient(
    queries_tile, keys_tile, values_tile, d_rows, row_lse, row_delta, allowed, scale
):
    """-> weights P and the scores' gradient dS = P·(dO Vᵀ - delta), (rows, columns) both."""
    scores = dot(queries_tile, tl.trans(keys_tile)) * scale
    weights = tl.where(allowed, tl.exp(scores - row_lse[:, None]), 0.0)
    d_weights = dot(d_rows, tl.trans(values_tile))
    return weights, weights * (d_weights - row_delta[:, None])


@triton.jit
def queries_gradient_kernel(
    q, k, v, d_out, lse, delta, dq, q_documents, k_documents,
    heads, group, queries, keys, size, offset, window, scale,
    PACKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Loops over the keys of one tile of queries again, accumulating dS·K."""
    first = tl.program_id(0) * ROWS
    head = tl.program_id(1).to(tl.int64)
    kv_head, batch = head // group, head // heads
    rows = first + tl.arange(0, ROWS)
    queries_tile = load_rows(q + head * queries * size, rows, queries, size, WIDTH)
    d_rows = load_rows(d_out + head * queries * size, rows, queries, size, WIDTH)
    row_lse = tl.load(lse + head * queries + rows, mask=rows < queries, other=0.0)
    row_delta = tl.load(delta + head * queries + rows, mask=rows < queries, other=0.0)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    start = tl.maximum(first + offset - window + 1, 0) // COLUMNS * COLUMNS
    for column in range(start, tl.minimum(keys, first + ROWS + offset), COLUMNS):
        columns = column + tl.arange(0, COLUMNS)
        keys_tile = load_rows(k + kv_head * keys * size, columns, keys, size, WIDTH)
        values_tile = load_rows(v + kv_head * keys * size, columns, keys, size, WIDTH)
        allowed = readable(
            rows, columns, queries, keys, offset, window,
            q_documents + batch * queries, k_documents + batch * keys, PACKED,
        )  # fmt: skip
        _, d_scores = scores_gradient(
            queries_tile, keys_tile, values_tile, d_rows, row_lse, row_delta, allowed, scale
        )
        total += dot(d_scores.to(keys_tile.dtype), keys_tile)
    store_rows(dq + head * queries * size, rows, queries, size, total * scale, WIDTH)


@triton.jit
def keys_gradient_kernel(
    q, k, v, d_out, lse, delta, dk, dv, q_documents, k_documents,
    heads, group, queries, keys, size, offset, window, scale,
    PACKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Loops over the queries of every head that reads this tile of keys: Pᵀ·dO and dSᵀ·Q."""
    first = tl.program_id(0) * COLUMNS
    kv_head = tl.program_id(1).to(tl.int64)  # of B·K
    batch = kv_head * group // heads
    columns = first + tl.arange(0, COLUMNS)
    keys_tile = load_rows(k + kv_head * keys * size, columns, keys, size, WIDTH)
    values_tile = load_rows(v + kv_head * keys * size, columns, keys, size, WIDTH)
    dk_tile = tl.zeros((COLUMNS, WIDTH), tl.float32)
    dv_tile = tl.zeros((COLUMNS, WIDTH), tl.float32)
    start = tl.maximum(first - offset, 0) // ROWS * ROWS
    for head in range(kv_head * group, (kv_head + 1) * group):
        for row in range(start, tl.minimum(queries, first + COLUMNS - 1 + window - offset), ROWS):
            rows = row + tl.arange(0, ROWS)
            queries_tile = load_rows(q + head * queries * size, rows, queries, size, WIDTH)
            d_rows = load_rows(d_out + head * queries * size, rows, queries, size, WIDTH)
            row_lse = tl.load(lse + head * queries + rows, mask=rows < queries, other=0.0)
            row_delta = tl.load(delta + head * queries + rows, mask=rows < queries, other=0.0)
            allowed = readable(
                rows, columns, queries, keys, offset, window,
                q_documents + batch * queries, k_documents + batch * keys, PACKED,
            )  # fmt: skip
            weights, d_scores = scores_gradient(
                queries_tile, keys_tile, values_tile, d_rows, row_lse, row_delta, allowed, scale
            )
            dv_tile += dot(tl.trans(weights.to(d_rows.dtype)), d_rows)
            dk_tile += dot(tl.trans(d_scores.to(queries_tile.dtype)), queries_tile)
    store_rows(dk + kv_head * keys * size, columns, keys, size, dk_tile * scale, WIDTH)
    store_rows(dv + kv_head * keys * size, columns, keys, size, dv_tile, WIDTH)
