"""Attention over a static cache, to each row's live length and no further; Triton kernels.

Flash attention with the online softmax of arXiv 2205.14135, scores in units of log2. The queries of
a key/value head lie side by side, [group * T, D], so a tile is any BLOCK_M of them: with few tokens
it holds the whole group, and every key and value is read once. The keys that a tile sees are the
span of its own positions; where there are too few tiles to fill the device, a span is split among
programs and `merge` puts the parts together (flash decoding).
"""

import triton
import triton.language as tl

__all__ = ["attend", "merge"]


@triton.jit
def _find_row(row, position_ids, batch, tokens, length, window, num_rows):
    """First and last key of rows [BLOCK_M] of a head's queries; 0 and 0 of those that are padding.

    A position behind the live length is a padded token's. It sees what the last one does, as in
    the operator's body, whose mask ends there.
    """
    position = tl.load(
        position_ids + batch.to(tl.int64) * tokens + row % tokens, mask=row < num_rows, other=0
    )
    last = tl.minimum(tl.maximum(position, 0), length - 1).to(tl.int32)
    first = tl.maximum(last - (window - 1), 0)
    return first, last


@triton.jit
def _find_span(row, first, last, num_rows, num_splits, BLOCK_N: tl.constexpr):
    """The keys start .. stop-1 that a tile's rows see between them, their tiles, and how many
    programs share them."""
    start = tl.min(tl.where(row < num_rows, first, 2147483647), 0)
    stop = tl.max(last, 0) + 1
    num_tiles = tl.cdiv(stop - start, BLOCK_N)
    return start, stop, num_tiles, tl.minimum(num_tiles, num_splits)


@triton.jit
def _load_tile(
    cache, start, stop,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """Rows `start` .. of a head's cache, as [BLOCK_N, BLOCK_D]; zeros from `stop` on."""
    key = tl.arange(0, BLOCK_N)
    channel = tl.arange(0, BLOCK_D)
    # Only the start of a tile needs 64 bits: offsets within it are the same for every tile.
    pointers = cache + start.to(tl.int64) * HEAD_DIM
    pointers += key[:, None] * HEAD_DIM + channel[None, :]
    live = key[:, None] < stop - start
    # Masks that are always true would still cost an instruction for every load.
    if BLOCK_D == HEAD_DIM and ALL:
        return tl.load(pointers)
    if BLOCK_D == HEAD_DIM:
        return tl.load(pointers, mask=live, other=0.0)
    return tl.load(pointers, mask=live & (channel[None, :] < HEAD_DIM), other=0.0)


@triton.jit
def _add_tile(
    weighted, total, highest, query, keys, values, start, stop, first, last, scale,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """The weighted values, sum of weights and highest score with the keys `start` .. added.

    `ALL` says that every row sees all of them.
    """
    loaded = _load_tile(keys, start, stop, HEAD_DIM, BLOCK_D, BLOCK_N, ALL)
    scores = tl.dot(query, tl.trans(loaded), input_precision=PRECISION) * scale
    if not ALL:
        key = start + tl.arange(0, BLOCK_N)
        visible = (key[None, :] >= first[:, None]) & (key[None, :] <= last[:, None])
        scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(highest, tl.max(scores, 1))
    # A row that has seen nothing yet: -inf less -inf would be NaN.
    base = higher if ALL else tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(highest - base)
    loaded = _load_tile(values, start, stop, HEAD_DIM, BLOCK_D, BLOCK_N, ALL)
    weighted = tl.dot(
        weights.to(loaded.dtype), loaded, weighted * shrink[:, None], input_precision=PRECISION
    )
    return weighted, total * shrink + tl.sum(weights, 1), higher


@triton.jit
def _find_full(row, first, last, num_rows, start, begin, end, BLOCK_N: tl.constexpr):
    """The tiles of begin .. end-1 of which every row sees every key, a run of them."""
    highest_first = tl.max(first, 0)
    lowest_last = tl.min(tl.where(row < num_rows, last, 2147483647), 0)
    full_begin = tl.minimum(tl.maximum(tl.cdiv(highest_first - start, BLOCK_N), begin), end)
    full_end = tl.maximum(lowest_last + 1 - start, 0) // BLOCK_N
    return full_begin, tl.minimum(tl.maximum(full_end, full_begin), end)


@triton.jit
def _add_tiles(
    queries, keys, values, row, first, last, start, stop, begin, end, num_rows, scale,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr, SKIP_MASKS: tl.constexpr,
):  # fmt: skip
    """`_add_tile` over the tiles begin .. end-1 of the keys start .. stop-1."""
    weighted = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    full_begin, full_end = begin, begin
    if SKIP_MASKS:
        full_begin, full_end = _find_full(row, first, last, num_rows, start, begin, end, BLOCK_N)
        for tile in range(full_begin, full_end):
            weighted, total, highest = _add_tile(
                weighted, total, highest, queries, keys, values,
                start + tile * BLOCK_N, stop, first, last, scale,
                HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, True,
            )  # fmt: skip
    num_full = full_end - full_begin
    for edge in range(begin, end - num_full):
        tile = tl.where(edge < full_begin, edge, edge + num_full)
        weighted, total, highest = _add_tile(
            weighted, total, highest, queries, keys, values,
            start + tile * BLOCK_N, stop, first, last, scale,
            HEAD_DIM, BLOCK_D, BLOCK_N, PRECISION, False,
        )  # fmt: skip
    return weighted, total, highest


@triton.jit
def attend(
    query, keys, values, position_ids, output, parts, scores_of_parts,
    kv_heads, tokens, capacity, length, window, num_splits, scale,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr, SKIP_MASKS: tl.constexpr,
):  # fmt: skip
    """One tile of queries over one share of the keys it sees; grid (tiles, B * n*Hkv, splits).

    query, output [B, n*Hkv, GROUP * T, D]; keys, values [B, n*Hkv, C, D]; position_ids int64
    [B, T]; parts fp32 [B * n*Hkv, splits, GROUP * T, D] and scores_of_parts [B * n*Hkv, splits,
    GROUP * T], the log2 of a part's sum of weights, where there is more than one split. `scale`
    has the factor log2(e) in it; `SKIP_MASKS`: go through tiles that every row sees without masks.
    """
    head = tl.program_id(1)
    split = tl.program_id(2)
    num_rows = GROUP * tokens
    # The last tokens have the most to do: they go first.
    row = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M + tl.arange(0, BLOCK_M)
    batch = head // kv_heads
    first, last = _find_row(row, position_ids, batch, tokens, length, window, num_rows)
    start, stop, num_tiles, shares = _find_span(row, first, last, num_rows, num_splits, BLOCK_N)
    if split >= shares:
        return

    channel = tl.arange(0, BLOCK_D)
    inside = (row[:, None] < num_rows) & (channel[None, :] < HEAD_DIM)
    cell = row[:, None] * HEAD_DIM + channel[None, :]
    query += head.to(tl.int64) * num_rows * HEAD_DIM
    output += head.to(tl.int64) * num_rows * HEAD_DIM
    this_cache = head.to(tl.int64) * capacity * HEAD_DIM
    weighted, total, highest = _add_tiles(
        tl.load(query + cell, mask=inside, other=0.0), keys + this_cache, values + this_cache,
        row, first, last, start, stop,
        split * num_tiles // shares, (split + 1) * num_tiles // shares, num_rows, scale,
        HEAD_DIM, BLOCK_D, BLOCK_M, BLOCK_N, PRECISION, SKIP_MASKS,
    )  # fmt: skip
    # Of its tile's share a row may have seen nothing.
    total = tl.where(total == 0.0, 1.0, total)
    weighted /= total[:, None]
    if num_splits == 1:
        tl.store(output + cell, weighted.to(output.dtype.element_ty), mask=inside)
    else:
        part = (head.to(tl.int64) * num_splits + split) * num_rows
        tl.store(parts + part * HEAD_DIM + cell, weighted, mask=inside)
        tl.store(scores_of_parts + part + row, highest + tl.log2(total), mask=row < num_rows)


@triton.jit
def merge(
    position_ids, output, parts, scores_of_parts,
    kv_heads, tokens, length, window, num_splits, block_m, block_n,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    MAX_BLOCK_M: tl.constexpr, BLOCK_SPLITS: tl.constexpr,
):  # fmt: skip
    """The parts of one row of `output`, weighted; grid (GROUP * T, B * n*Hkv).

    Arrays are those of `attend`, `block_m` and `block_n` its tiles: as many parts of the row are
    there as programs shared its tile's keys.
    """
    this = tl.program_id(0)
    head = tl.program_id(1)
    num_rows = GROUP * tokens
    in_tile = this // block_m * block_m
    row = in_tile + tl.arange(0, MAX_BLOCK_M)
    end = tl.minimum(num_rows, in_tile + block_m)
    first, last = _find_row(row, position_ids, head // kv_heads, tokens, length, window, end)
    _, _, _, shares = _find_span(row, first, last, end, num_splits, block_n)

    channel = tl.arange(0, BLOCK_D)
    weighted = tl.zeros([BLOCK_D], tl.float32)
    total = 0.0
    highest = float("-inf")
    for done in range(0, shares, BLOCK_SPLITS):
        split = done + tl.arange(0, BLOCK_SPLITS)
        part = (head.to(tl.int64) * num_splits + split) * num_rows + this
        score = tl.load(scores_of_parts + part, mask=split < shares, other=float("-inf"))
        inside = (split[:, None] < shares) & (channel[None, :] < HEAD_DIM)
        found = tl.load(parts + part[:, None] * HEAD_DIM + channel[None, :], mask=inside, other=0.0)
        higher = tl.maximum(highest, tl.max(score, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(score - base)
        shrink = tl.exp2(highest - base)
        weighted = weighted * shrink + tl.sum(weight[:, None] * found, 0)
        total = total * shrink + tl.sum(weight, 0)
        highest = higher
    cell = (head.to(tl.int64) * num_rows + this) * HEAD_DIM + channel
    result = weighted / total
    tl.store(output + cell, result.to(output.dtype.element_ty), mask=channel < HEAD_DIM)
