"""Triton kernels of `quatrain::BankTopKFeedForward`; `plugin.py` says which run when.

D is the hidden size, RANK the predictor's, CHANNELS all banks of BANK channels together. Sums,
logits, selection and gate are float32; `down` is [CHANNELS, D] like `gate` and `up`.
"""

import triton
import triton.language as tl

__all__ = [
    "multiply_down_kernel",
    "multiply_gate_up_kernel",
    "predict_hidden_kernel",
    "predict_hidden_tile_kernel",
    "run_channels_kernel",
    "sum_parts_kernel",
]


@triton.jit
def predict_hidden_kernel(
    x,
    predictor_0,
    hidden,
    D: tl.constexpr,
    RANK: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """hidden [rows, RANK] = act(P0 x), a number of one row; grid (rows, RANK)."""
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1)
    sums = tl.zeros([BLOCK_D], tl.float32)
    for start in range(0, D, BLOCK_D):
        columns = start + tl.arange(0, BLOCK_D)
        values = tl.load(x + row * D + columns, mask=columns < D, other=0.0)
        weights = tl.load(predictor_0 + unit * D + columns, mask=columns < D, other=0.0)
        sums += values.to(tl.float32) * weights.to(tl.float32)
    tl.store(hidden + row * RANK + unit, _activate(tl.sum(sums, axis=0), ACTIVATION))


@triton.jit
def run_channels_kernel(
    x,
    hidden,
    predictor_1,
    gate,
    up,
    down,
    parts,
    D: tl.constexpr,
    RANK: tl.constexpr,
    CHANNELS: tl.constexpr,
    BANK: tl.constexpr,
    TOP_K: tl.constexpr,
    GATE_MODE: tl.constexpr,
    BANKS: tl.constexpr,
    SPLITS: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_LOGITS: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    BLOCK_SLOTS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
):
    """What some active channels add to one row: parts [rows, programs, D].

    Of BANKS banks it selects the active channels, and takes SLOTS of them: the banks' BANKS * TOP_K
    are shared out among SPLITS programs. No other channel's weights are read. Grid (rows, groups of
    banks * SPLITS); rows come first, so that those that share a channel meet in the cache.
    Loops that load one tile a step have twice as many under way as the one that loads two.
    """
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    first = part // SPLITS * (BANKS * BANK)
    offsets = tl.arange(0, BLOCK_LOGITS)
    exists = (offsets < BANKS * BANK) & (first + offsets < CHANNELS)
    sums = tl.zeros([BLOCK_LOGITS, BLOCK_RANK], tl.float32)
    for start in tl.range(0, RANK, BLOCK_RANK, num_stages=2 * STAGES - 1):
        ranks = start + tl.arange(0, BLOCK_RANK)
        values = tl.load(hidden + row * RANK + ranks, mask=ranks < RANK, other=0.0)
        at = (first + offsets)[:, None] * RANK + ranks[None, :]
        weights = tl.load(predictor_1 + at, exists[:, None] & (ranks < RANK)[None, :], other=0.0)
        sums += values[None, :] * weights.to(tl.float32)
    logits = tl.sum(sums, axis=1)
    logits = tl.where(logits == logits, logits, float("-inf"))
    # A channel's place in its bank is the number of those that go before it.
    equal_goes_first = (logits[None, :] == logits[:, None]) & (offsets[None, :] < offsets[:, None])
    goes_first = (logits[None, :] > logits[:, None]) | equal_goes_first
    same_bank = (offsets[None, :] // BANK == offsets[:, None] // BANK) & exists[None, :]
    place = tl.sum((goes_first & same_bank).to(tl.int32), axis=1)
    slot = tl.where(exists & (place < TOP_K), offsets // BANK * TOP_K + place, -1)
    mine = tl.arange(0, BLOCK_SLOTS)
    wanted = slot[None, :] == (part % SPLITS * SLOTS + mine)[:, None]
    wanted = wanted & (mine < SLOTS)[:, None]
    number = tl.sum(tl.where(wanted, 1 + offsets[None, :], 0), axis=1)  # 0: there is none
    active = number > 0
    logit = tl.sum(tl.where(wanted, logits[None, :], 0.0), axis=1)
    weight_rows = (first + number - 1).to(tl.int64) * D
    u = tl.zeros([BLOCK_SLOTS, BLOCK_D], tl.float32)
    v = tl.zeros([BLOCK_SLOTS, BLOCK_D], tl.float32)
    for start in tl.range(0, D, BLOCK_D, num_stages=STAGES):
        columns = start + tl.arange(0, BLOCK_D)
        values = tl.load(x + row * D + columns, mask=columns < D, other=0.0).to(tl.float32)
        at = weight_rows[:, None] + columns[None, :]
        inside = active[:, None] & (columns < D)[None, :]
        u += values[None, :] * tl.load(gate + at, inside, other=0.0).to(tl.float32)
        v += values[None, :] * tl.load(up + at, inside, other=0.0).to(tl.float32)
    inner = _multiply(tl.sum(u, axis=1), tl.sum(v, axis=1), GATE_MODE)
    inner = tl.where(active, _apply_gate(inner, logit, GATE_MODE), 0.0)
    part_row = (row * tl.num_programs(1) + part) * D
    for start in tl.range(0, D, BLOCK_D, num_stages=2 * STAGES - 1):
        columns = start + tl.arange(0, BLOCK_D)
        inside = active[:, None] & (columns < D)[None, :]
        weights = tl.load(down + weight_rows[:, None] + columns[None, :], inside, other=0.0)
        added = tl.sum(inner[:, None] * weights.to(tl.float32), axis=0)
        tl.store(parts + part_row + columns, added, mask=columns < D)


@triton.jit
def sum_parts_kernel(
    parts, y, D: tl.constexpr, PARTS: tl.constexpr, BLOCK_PARTS: tl.constexpr, BLOCK_D: tl.constexpr
):
    """y [rows, D] = the sum of parts [rows, PARTS, D], in one order; grid (rows, blocks of D)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    sums = tl.zeros([BLOCK_PARTS, BLOCK_D], tl.float32)
    for start in range(0, PARTS, BLOCK_PARTS):
        numbers = start + tl.arange(0, BLOCK_PARTS)
        inside = (numbers < PARTS)[:, None] & (columns < D)[None, :]
        at = (row * PARTS + numbers)[:, None] * D + columns[None, :]
        sums += tl.load(parts + at, inside, other=0.0)
    result = tl.sum(sums, axis=0)
    tl.store(y + row * D + columns, result.to(y.dtype.element_ty), mask=columns < D)


@triton.jit
def predict_hidden_tile_kernel(
    x,
    predictor_0,
    hidden,
    num_rows,
    D: tl.constexpr,
    RANK: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """hidden [rows, RANK] = act(P0 x), of a tile; grid (blocks of rows, blocks of RANK)."""
    rows = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    ranks = tl.program_id(1) * BLOCK_RANK + tl.arange(0, BLOCK_RANK)
    sums = tl.zeros([BLOCK_ROWS, BLOCK_RANK], tl.float32)
    for start in range(0, D, BLOCK_D):
        columns = start + tl.arange(0, BLOCK_D)
        inside = (rows < num_rows)[:, None] & (columns < D)[None, :]
        values = tl.load(x + rows[:, None] * D + columns[None, :], inside, other=0.0)
        inside = (columns < D)[:, None] & (ranks < RANK)[None, :]
        weights = tl.load(predictor_0 + ranks[None, :] * D + columns[:, None], inside, other=0.0)
        sums = tl.dot(values, weights, sums, input_precision="tf32x3")
    inside = (rows < num_rows)[:, None] & (ranks < RANK)[None, :]
    at = rows[:, None] * RANK + ranks[None, :]
    tl.store(hidden + at, _activate(sums, ACTIVATION), mask=inside)


@triton.jit
def multiply_gate_up_kernel(
    x,
    hidden,
    predictor_1,
    gate,
    up,
    inner,
    num_rows,
    D: tl.constexpr,
    RANK: tl.constexpr,
    CHANNELS: tl.constexpr,
    BANK: tl.constexpr,
    TOP_K: tl.constexpr,
    GATE_MODE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_BANK: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """inner [rows, CHANNELS] = m * g * u * v of a tile of rows and one bank, zero where m is.

    Grid (blocks of rows, banks): neighbours share a bank's weights.
    """
    rows = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    offsets = tl.arange(0, BLOCK_BANK)
    exists = offsets < BANK
    channels = (tl.program_id(1) * BANK + offsets).to(tl.int64)
    u = tl.zeros([BLOCK_ROWS, BLOCK_BANK], tl.float32)
    v = tl.zeros([BLOCK_ROWS, BLOCK_BANK], tl.float32)
    for start in range(0, D, BLOCK_D):
        columns = start + tl.arange(0, BLOCK_D)
        inside = (rows < num_rows)[:, None] & (columns < D)[None, :]
        values = tl.load(x + rows[:, None] * D + columns[None, :], inside, other=0.0)
        at = channels[None, :] * D + columns[:, None]
        inside = (columns < D)[:, None] & exists[None, :]
        u = tl.dot(values, tl.load(gate + at, inside, other=0.0), u, input_precision="tf32x3")
        v = tl.dot(values, tl.load(up + at, inside, other=0.0), v, input_precision="tf32x3")
    product = _multiply(u, v, GATE_MODE)
    logits = tl.zeros([BLOCK_ROWS, BLOCK_BANK], tl.float32)
    for start in range(0, RANK, BLOCK_RANK):
        ranks = start + tl.arange(0, BLOCK_RANK)
        inside = (rows < num_rows)[:, None] & (ranks < RANK)[None, :]
        values = tl.load(hidden + rows[:, None] * RANK + ranks[None, :], inside, other=0.0)
        inside = (ranks < RANK)[:, None] & exists[None, :]
        at = channels[None, :] * RANK + ranks[:, None]
        weights = tl.load(predictor_1 + at, inside, other=0.0).to(tl.float32)
        # Three products of tf32 are as exact as float32: rounded logits would tie.
        logits = tl.dot(values, weights, logits, input_precision="tf32x3")
    logits = tl.where(logits == logits, logits, float("-inf"))
    chosen = _choose_largest(logits, exists, TOP_K, BLOCK_BANK)
    result = tl.where(chosen, _apply_gate(product, logits, GATE_MODE), 0.0)
    inside = (rows < num_rows)[:, None] & exists[None, :]
    at = rows[:, None] * CHANNELS + channels[None, :]
    tl.store(inner + at, result.to(inner.dtype.element_ty), mask=inside)


@triton.jit
def multiply_down_kernel(
    inner,
    down,
    y,
    num_rows,
    D: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """y [rows, D] = inner [rows, CHANNELS] times down; grid (blocks of rows, blocks of D)."""
    rows = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    sums = tl.zeros([BLOCK_ROWS, BLOCK_D], tl.float32)
    for start in range(0, CHANNELS, BLOCK_CHANNELS):
        channels = start + tl.arange(0, BLOCK_CHANNELS)
        inside = (rows < num_rows)[:, None] & (channels < CHANNELS)[None, :]
        values = tl.load(inner + rows[:, None] * CHANNELS + channels[None, :], inside, other=0.0)
        inside = (channels < CHANNELS)[:, None] & (columns < D)[None, :]
        at = channels.to(tl.int64)[:, None] * D + columns[None, :]
        weights = tl.load(down + at, inside, other=0.0)
        sums = tl.dot(values, weights, sums, input_precision="tf32x3")
    inside = (rows < num_rows)[:, None] & (columns < D)[None, :]
    at = rows[:, None] * D + columns[None, :]
    tl.store(y + at, sums.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _activate(hidden, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        hidden = tl.where(hidden < 0, 0.0, hidden)  # NaN stays
    elif ACTIVATION == "silu":
        hidden = hidden * tl.sigmoid(hidden)
    return hidden


@triton.jit
def _multiply(u, v, GATE_MODE: tl.constexpr):
    if GATE_MODE == "silu":
        u = u * tl.sigmoid(u)
    return u * v


@triton.jit
def _apply_gate(product, logits, GATE_MODE: tl.constexpr):
    return product * tl.sigmoid(logits) if GATE_MODE == "sigmoid" else product


@triton.jit
def _choose_largest(logits, exists, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """True for the TOP_K largest of each row, of equal ones the first; no NaN.

    Bit by bit it finds the largest key that TOP_K others reach, and then how far to go among its
    equals: work for each row grows with the bank, not with its square as comparing pairs does.
    """
    # Integers in the order of the floats they stand for; -0.0 is made 0.0 before.
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    keys = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = tl.where(exists[None, :], keys, -0x80000000)
    least = tl.full([logits.shape[0]], -0x80000000, tl.int32)
    one = tl.full([1], 1, tl.int32)
    for step in range(32):
        tried = least ^ (one << (31 - step))
        count = tl.sum((keys >= tried[:, None]).to(tl.int32), axis=1)
        least = tl.where(count >= TOP_K, tried, least)
    above = keys > least[:, None]
    equal = (keys == least[:, None]) & exists[None, :]
    room = TOP_K - tl.sum(above.to(tl.int32), axis=1)
    offsets = tl.arange(0, BLOCK)[None, :]
    end = tl.zeros([logits.shape[0]], tl.int32)
    for step in range(8):
        tried = end + (one << (7 - step))
        count = tl.sum((equal & (offsets < tried[:, None])).to(tl.int32), axis=1)
        end = tl.where(count <= room, tried, end)
    return above | (equal & (offsets < end[:, None]))
