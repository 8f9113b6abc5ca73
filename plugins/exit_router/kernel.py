"""`quatrain::ExitRouter` in Triton: the whole router in one launch, or a layer a launch.

Everything is fp32 inside, as in the function body: activations stay fp32 between layers, and a
16-bit weight is exact in the TF32 parts that `tl.dot` multiplies. A norm's scale is one number a
row, so it is found in the same pass as the products and put to their sums. `row` is int64
everywhere: rows times width may exceed 2^31.
"""

import triton
import triton.language as tl

__all__ = ["decide_exit", "route_exit", "run_layer"]

_SQRT_HALF = tl.constexpr(0.7071067811865476)


@triton.jit
def _load_rows(x, row, row_mask, k, width: tl.constexpr):
    """Columns `k` of the rows `row` of x [rows, width], in fp32; zeros beyond."""
    mask = row_mask[:, None] & (k < width)[None, :]
    return tl.load(x + row[:, None] * width + k[None, :], mask, other=0.0).to(tl.float32)


@triton.jit
def _load_vector(x, k, width: tl.constexpr):
    """Elements `k` of x [width], in fp32; zeros beyond."""
    return tl.load(x + k, k < width, other=0.0).to(tl.float32)


@triton.jit
def _find_scale(squares, epsilon, width: tl.constexpr):
    """One over the root mean square of rows, from the sums of their squares."""
    return 1.0 / tl.sqrt_rn(squares / width + epsilon)


@triton.jit
def _write_normed(x, gain, normed, scale, row, row_mask, k, width: tl.constexpr):
    """Columns `k` of normed [rows, width]: x times `scale` of its row and gain [width]."""
    values = _load_rows(x, row, row_mask, k, width) * scale[:, None]
    values *= _load_vector(gain, k, width)[None, :]
    mask = row_mask[:, None] & (k < width)[None, :]
    to = normed + row[:, None] * width + k[None, :]
    tl.store(to, values.to(normed.dtype.element_ty), mask)


@triton.jit
def _multiply(
    x, gain, weight, row, row_mask, column,
    width: tl.constexpr, outputs: tl.constexpr, normalize: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Outputs `column` of x [rows, width], times gain [width] with `normalize`, times the transpose
    of weight [outputs, width]; and the sums of the squares of x."""
    rows: tl.constexpr = row.shape[0]
    columns: tl.constexpr = column.shape[0]
    squares = tl.zeros([rows, block_k], tl.float32)
    # One row is a dot product a column, summed at the end; more are tiles for the tensor cores.
    if rows == 1:
        total = tl.zeros([columns, block_k], tl.float32)
    else:
        total = tl.zeros([rows, columns], tl.float32)
    for start in range(0, width, block_k):
        k = start + tl.arange(0, block_k)
        mask = (column < outputs)[:, None] & (k < width)[None, :]
        tile = tl.load(weight + column[:, None] * width + k[None, :], mask, other=0.0)
        tile = tile.to(tl.float32)
        values = _load_rows(x, row, row_mask, k, width)
        if normalize:
            squares += values * values
            values *= _load_vector(gain, k, width)[None, :]
        if rows == 1:
            total += tile * values
        else:
            total = tl.dot(values, tl.trans(tile), total, input_precision="tf32x3")
    if rows == 1:
        total = tl.sum(total, axis=1)[None, :]
    return total, tl.sum(squares, axis=1)


@triton.jit
def _run_columns(
    x, gain, weight, bias, y, row, row_mask, first, epsilon,
    width: tl.constexpr, outputs: tl.constexpr, normalize: tl.constexpr, gelu: tl.constexpr,
    block_n: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Outputs from `first` on, `block_n` of them, of a layer: to y float32 [rows, outputs].

    Returns the scale that the norm before the layer found.
    """
    column = first + tl.arange(0, block_n)
    total, squares = _multiply(
        x, gain, weight, row, row_mask, column, width, outputs, normalize, block_k
    )
    scale = _find_scale(squares, epsilon, width)
    if normalize:
        total *= scale[:, None]
    total += _load_vector(bias, column, outputs)[None, :]
    if gelu:
        total = 0.5 * total * (1.0 + tl.erf(total * _SQRT_HALF))
    mask = row_mask[:, None] & (column < outputs)[None, :]
    tl.store(y + row[:, None] * outputs + column[None, :], total, mask)
    return scale


@triton.jit
def _run_block(
    x, gain, fc1_weight, fc1_bias, fc2_weight, fc2_bias, inner, state, row, row_mask, epsilon,
    width: tl.constexpr, inner_size: tl.constexpr, router_size: tl.constexpr,
    normalize: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """An MLP block of these rows, by way of inner float32 [rows, inner_size], to state."""
    for first in range(0, inner_size, block_n):
        _run_columns(
            x, gain, fc1_weight, fc1_bias, inner, row, row_mask, first, epsilon,
            width, inner_size, normalize, True, block_n, block_k,
        )  # fmt: skip
    # What one thread wrote to memory others are about to read.
    tl.debug_barrier()
    for first in range(0, router_size, block_n):
        _run_columns(
            inner, gain, fc2_weight, fc2_bias, state, row, row_mask, first, epsilon,
            inner_size, router_size, False, False, block_n, block_k,
        )  # fmt: skip
    tl.debug_barrier()


@triton.jit
def _write_log_probs(
    state, gain, head_weight, head_bias, log_probs, row, row_mask, epsilon, temperature,
    width: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Norm, head and log-softmax of state float32 [rows, width]."""
    squares = tl.zeros([row.shape[0], block_k], tl.float32)
    sum0 = tl.zeros([row.shape[0], block_k], tl.float32)
    sum1 = tl.zeros([row.shape[0], block_k], tl.float32)
    for start in range(0, width, block_k):
        k = start + tl.arange(0, block_k)
        values = _load_rows(state, row, row_mask, k, width)
        squares += values * values
        values *= _load_vector(gain, k, width)[None, :]
        sum0 += values * _load_vector(head_weight, k, width)[None, :]
        sum1 += values * _load_vector(head_weight + width, k, width)[None, :]
    scale = _find_scale(tl.sum(squares, axis=1), epsilon, width)
    logit0 = tl.sum(sum0, axis=1) * scale + tl.load(head_bias).to(tl.float32)
    logit1 = tl.sum(sum1, axis=1) * scale + tl.load(head_bias + 1).to(tl.float32)
    logit0, logit1 = logit0 / temperature, logit1 / temperature
    top = tl.maximum(logit0, logit1)
    total = top + tl.log(tl.exp(logit0 - top) + tl.exp(logit1 - top))
    tl.store(log_probs + row * 2, logit0 - total, row_mask)
    tl.store(log_probs + row * 2 + 1, logit1 - total, row_mask)


@triton.jit
def route_exit(
    hidden, gain, fc1_w0, fc1_b0, fc2_w0, fc2_b0, fc1_w1, fc1_b1, fc2_w1, fc2_b1,
    fc1_w2, fc1_b2, fc2_w2, fc2_b2, fc1_w3, fc1_b3, fc2_w3, fc2_b3,
    router_gain, head_weight, head_bias, normed, log_probs, inner, state,
    num_rows, epsilon, temperature,
    hidden_size: tl.constexpr, inner_size: tl.constexpr, router_size: tl.constexpr,
    num_blocks: tl.constexpr, rows: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Everything, `rows` rows a program. Grid: (num_rows / rows,).

    hidden, normed [num_rows, hidden_size]; log_probs float32 [num_rows, 2]. Scratch memory: inner
    float32 [num_rows, inner_size], state float32 [num_rows, router_size]. The weights of blocks
    beyond `num_blocks` are not read.
    """
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    row_mask = row < num_rows
    squares = tl.zeros([rows, block_k], tl.float32)
    for start in range(0, hidden_size, block_k):
        values = _load_rows(hidden, row, row_mask, start + tl.arange(0, block_k), hidden_size)
        squares += values * values
    scale = _find_scale(tl.sum(squares, axis=1), epsilon, hidden_size)
    for start in range(0, hidden_size, block_k):
        k = start + tl.arange(0, block_k)
        _write_normed(hidden, gain, normed, scale, row, row_mask, k, hidden_size)
    _run_block(
        hidden, gain, fc1_w0, fc1_b0, fc2_w0, fc2_b0, inner, state, row, row_mask, epsilon,
        hidden_size, inner_size, router_size, True, block_n, block_k,
    )  # fmt: skip
    fc1_w, fc1_b = (fc1_w1, fc1_w2, fc1_w3), (fc1_b1, fc1_b2, fc1_b3)
    fc2_w, fc2_b = (fc2_w1, fc2_w2, fc2_w3), (fc2_b1, fc2_b2, fc2_b3)
    for j in tl.static_range(num_blocks - 1):
        _run_block(
            state, gain, fc1_w[j], fc1_b[j], fc2_w[j], fc2_b[j], inner, state, row, row_mask,
            epsilon, router_size, inner_size, router_size, False, block_n, block_k,
        )  # fmt: skip
    _write_log_probs(
        state, router_gain, head_weight, head_bias, log_probs, row, row_mask,
        epsilon, temperature, router_size, block_k,
    )  # fmt: skip


@triton.jit
def run_layer(
    x, gain, weight, bias, y, normed, num_rows, epsilon,
    width: tl.constexpr, outputs: tl.constexpr, normalize: tl.constexpr, gelu: tl.constexpr,
    rows: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, share: tl.constexpr,
):  # fmt: skip
    """`block_n` outputs of one layer for `rows` rows. Grid: (num_rows / rows, outputs / block_n).

    x [num_rows, width]; y float32 [num_rows, outputs]. With `normalize`, the first layer, x is yet
    without its norm; each program then writes `share` columns of normed [num_rows, width] too.
    """
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    row_mask = row < num_rows
    scale = _run_columns(
        x, gain, weight, bias, y, row, row_mask, tl.program_id(1) * block_n, epsilon,
        width, outputs, normalize, gelu, block_n, block_k,
    )  # fmt: skip
    if normalize:
        k = tl.program_id(1) * share + tl.arange(0, share)
        _write_normed(x, gain, normed, scale, row, row_mask, k, width)


@triton.jit
def decide_exit(
    state, gain, head_weight, head_bias, log_probs, num_rows, epsilon, temperature,
    width: tl.constexpr, rows: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """log_probs float32 [num_rows, 2] of state float32 [num_rows, width]. Grid: (num_rows,)."""
    row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    _write_log_probs(
        state, gain, head_weight, head_bias, log_probs, row, row < num_rows,
        epsilon, temperature, width, block_k,
    )  # fmt: skip
