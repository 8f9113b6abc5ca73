"""The sizes of one bank-top-k network, which are fixed when an engine is built."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from quatrain.plugins.definition import DType, UnsupportedError
from quatrain.plugins.launch import WORKSPACE, Constant, KernelVariant, Pointer

__all__ = [
    "DOWN",
    "GATE",
    "HIDDEN",
    "INPUTS",
    "PREDICTOR_0",
    "PREDICTOR_1",
    "UP",
    "Network",
    "X",
    "Y",
    "check_types",
    "pad_power",
    "read_network",
]

INPUTS = ("x", "predictor_0", "predictor_1", "gate", "up", "down")
X, PREDICTOR_0, PREDICTOR_1, GATE, UP, DOWN, Y = (Pointer(tensor) for tensor in range(7))
HIDDEN = Pointer(WORKSPACE)
"""What the predictor has between its two layers: the first thing in the workspace, float32."""

_Float = Literal["float32", "float16", "bfloat16"]
_FLOATS: dict[DType, _Float] = {name: name for name in get_args(_Float)}
# The second axis of a grid ends at the first; it has ranks, banks, and programs of few rows, which
# are at most two for five channels. Kernels count the predictor's weights in int32.
_MAX_GRID = 65535
_MAX_CHANNELS = 131072
_MAX_INT32 = 2**31 - 1
_TRITON_TYPES: dict[_Float, str] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Network:
    """`channels` in banks of `bank_size`, `top_k` of each active; weights and x are of `dtype`."""

    dtype: _Float
    hidden_size: int
    rank: int
    channels: int
    bank_size: int
    top_k: int
    gate_mode: str
    activation: str

    @property
    def item_bytes(self) -> int:
        """Bytes of an element of x and of the weights."""
        return 4 if self.dtype == "float32" else 2

    def count_hidden_bytes(self, rows: int) -> int:
        """What `HIDDEN` takes of the workspace; what follows begins at a multiple of 256 bytes."""
        return -(-rows * self.rank * 4 // 256) * 256

    def fit_block(self, num_bytes: int, size: int) -> int:
        """A power of two of elements: `num_bytes` of them, or what holds `size` if that is less."""
        return min(num_bytes // self.item_bytes, pad_power(size, 16))

    def make_variant(
        self, kernel: str, types: Sequence[str], constants: dict[str, Constant], warps: int
    ) -> KernelVariant:
        """A variant; "x" stands for a pointer to `dtype` and "f" for one to float32."""
        kinds = {"x": f"*{_TRITON_TYPES[self.dtype]}:16", "f": "*fp32:16"}
        return KernelVariant(
            "bank_topk_ffn",
            kernel,
            tuple(kinds.get(kind, kind) for kind in types),
            tuple(constants.items()),
            num_warps=warps,
            num_stages=3,
        )


def read_network(
    dtypes: Sequence[DType],
    shapes: Sequence[tuple[int, ...]],
    bank_size: int,
    top_k: int,
    gate_mode: str,
    activation: str,
) -> Network:
    """From the inputs' types and shapes, of which those of x may be dynamic but for the last.

    Raises `UnsupportedError` where they do not go together.
    """
    dtype = check_types(dtypes, [len(shape) for shape in shapes])
    channels, hidden_size = shapes[3]
    rank = shapes[2][1]
    sizes = {"d": hidden_size, "r": rank, "d_i": channels}
    axes = (("r", "d"), ("d_i", "r"), ("d_i", "d"), ("d_i", "d"), ("d_i", "d"))
    expected = [(hidden_size,), *(tuple(sizes[axis] for axis in pair) for pair in axes)]
    found = [shapes[0][-1:], *shapes[1:]]
    for name, size, want in zip(INPUTS, found, expected, strict=True):
        if size != want or min(size) < 1:
            raise UnsupportedError(f"{name} is {list(size)}, the other inputs ask for {list(want)}")
    if channels % bank_size:
        raise UnsupportedError(f"{channels} channels are no whole number of banks of {bank_size}")
    _check_limits(rank, hidden_size, channels, channels // bank_size)
    return Network(dtype, hidden_size, rank, channels, bank_size, top_k, gate_mode, activation)


def _check_limits(rank: int, hidden_size: int, channels: int, num_banks: int) -> None:
    limits = {
        "banks": (num_banks, _MAX_GRID),
        "channels": (channels, _MAX_CHANNELS),
        "ranks of the predictor": (rank, _MAX_GRID),
        "weights in a layer of the predictor": (rank * max(hidden_size, channels), _MAX_INT32),
    }
    for name, (found, most) in limits.items():
        if found > most:
            raise UnsupportedError(f"{found:,} {name}; the kernels take {most:,} at most")


def check_types(dtypes: Sequence[DType], ranks: Sequence[int]) -> _Float:
    """The one type of all inputs; `UnsupportedError` if it or a number of axes will not do."""
    if len(dtypes) != len(INPUTS):
        raise UnsupportedError(f"there are {len(dtypes)} inputs, not {', '.join(INPUTS)}")
    if len(set(dtypes)) > 1 or dtypes[0] not in _FLOATS:
        found = ", ".join(f"{n} is {t}" for n, t in zip(INPUTS, dtypes, strict=True))
        raise UnsupportedError(f"{found}: all must be one of {', '.join(_FLOATS)}")
    if list(ranks) != [3, 2, 2, 2, 2, 2]:
        raise UnsupportedError(f"the inputs have {list(ranks)} axes, not [3, 2, 2, 2, 2, 2]")
    return _FLOATS[dtypes[0]]


def pad_power(size: int, least: int = 1) -> int:
    """The next power of two, `least` (one itself) or more."""
    return max(least, 1 << (size - 1).bit_length())
