"""How attention is cut into tiles, and tiles' keys into shares: from shapes alone.

Measured so far is what the compiler says (registers, shared memory, spills; the tests hold it);
what is said here of time is reckoned, for A100, RTX A6000 and RTX 3090.
"""

from dataclasses import dataclass

__all__ = ["MAX_SPLITS", "Tile", "choose_split", "choose_tile", "list_tiles"]

MAX_SPLITS = 256
"""Programs that share a tile's keys, at most: two for each multiprocessor of an A100, if there is
but one key/value head."""
_MAX_MULTIPROCESSORS = 256
"""As many of them are filled at most; it bounds the scratch memory."""
_MIN_KEY_TILES = 2
"""Of a share: with less, a program would do little but start."""
_NUM_STAGES = 3
"""With two, Triton 3.9 waits for all it has asked for before it computes; from three on the next
tile is on its way meanwhile (seen in the PTX: `cp.async.wait_group`)."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The queries [block_m] and keys [block_n] of a step, and how its kernel is compiled."""

    block_m: int
    block_n: int
    num_warps: int
    skip_masks: bool
    """Whether tiles that every query sees get a loop of their own, without masks. Where memory is
    what one waits for they are free, and a second loop would cost its start."""
    per_multiprocessor: int
    """Programs that are to share a multiprocessor."""
    num_stages: int = _NUM_STAGES


def choose_tile(num_rows: int, head_dim: int, item_bytes: int) -> Tile:
    """For the queries of a key/value head: its group of heads times the tokens.

    Up to 64 rows fit one tile, and every key and value is read once: a decode step, or the check
    of a few drafted tokens. From there on tiles are as large as registers allow, since each reads
    all keys it sees.
    """
    width = pad_head_dim(head_dim)
    if item_bytes == 4:
        # Products of three TF32 parts take three times the registers, so this serves all.
        return Tile(16, min(32, 2048 // width), 4, skip_masks=False, per_multiprocessor=2)
    # A tile of keys is 8 KiB, of values as much, and two of each are kept: about 38 KiB for 16
    # rows, so that two programs fit the 100 KiB of an SM 8.6 and four the 164 KiB of an 8.0. Then
    # at least 32 KiB are on their way to each multiprocessor, and bandwidth times latency asks
    # for 9 (A100: 1555 GB/s / 108 * 0.6 us) and 7 (RTX 3090: 936 / 82).
    block_n = min(128, 4096 // width)
    if num_rows <= 32:
        # 16 is the least a tensor core takes. What is left empty costs no time: a key and value
        # of 128 channels are 512 bytes and, with 32 rows, 16384 FLOPs. That is 32 a byte, and an
        # RTX 3090 does 75 meanwhile (71 TFLOPS, 936 GB/s), an A100 200.
        return Tile(16 if num_rows <= 16 else 32, block_n, 4, False, 4)
    # More keys at once would not fit in the registers; nor, of 256 channels, would 128 rows.
    block_n = min(64, block_n)
    if num_rows <= 64:
        return Tile(64, block_n, 8 if width == 256 else 4, False, 2)
    return Tile(64 if width == 256 else 128, block_n, 8, True, 1)


def pad_head_dim(head_dim: int) -> int:
    """The power of two that a block needs; channels beyond the head's are zero and never loaded."""
    return 1 << (head_dim - 1).bit_length()


def list_tiles(group: int, max_tokens: int, head_dim: int, item_bytes: int) -> list[Tile]:
    """Every tile for 1 .. `max_tokens` tokens, smallest first."""
    most = group * max_tokens
    ends = sorted({group * min(end // group or 1, max_tokens) for end in (16, 32, 64)} | {most})
    tiles = (choose_tile(rows, head_dim, item_bytes) for rows in ends)
    return list(dict.fromkeys(tiles))


def choose_split(tile: Tile, num_programs: int, num_keys: int, num_multiprocessors: int) -> int:
    """Among how many programs the keys of each of `num_programs` tiles of queries are shared.

    As many as are to run at once and no more: they do the same and end together. (Of small tiles
    an SM 8.6 holds two where an 8.0 holds four; it takes them one after another, and meanwhile
    either has its memory busy.) Those that a row's live length leaves nothing for return at once,
    and the rest share its keys evenly.
    """
    room = tile.per_multiprocessor * min(num_multiprocessors, _MAX_MULTIPROCESSORS)
    return max(1, min(room // num_programs, limit_split(tile, num_keys)))


def limit_split(tile: Tile, num_keys: int) -> int:
    """The most that `choose_split` may say, on any device."""
    return max(1, min(MAX_SPLITS, -(-num_keys // tile.block_n) // _MIN_KEY_TILES))


def count_max_programs(tile: Tile) -> int:
    """The most programs of a launch that splits keys."""
    return tile.per_multiprocessor * _MAX_MULTIPROCESSORS
