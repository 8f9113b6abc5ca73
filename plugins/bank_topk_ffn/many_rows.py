"""The launches for many rows: tiles of all channels, the inactive ones set to zero.

Rows choose differently, so that together they soon need every channel: each weight is read once
for a tile of rows, and tensor cores multiply.
"""

from dataclasses import dataclass

from quatrain.plugins.bank_topk_ffn.network import (
    DOWN,
    GATE,
    HIDDEN,
    PREDICTOR_0,
    PREDICTOR_1,
    UP,
    Network,
    X,
    Y,
    pad_power,
)
from quatrain.plugins.launch import WORKSPACE, Constant, KernelVariant, Launch, Pointer

__all__ = ["ManyRows"]

_LOW_ROWS = 64
"""Up to here reading the weights is what takes the time: low tiles, and more of them."""


@dataclass(frozen=True, slots=True)
class ManyRows:
    """The launches of a network."""

    network: Network

    def list_variants(self, rows: int) -> list[KernelVariant]:
        """Predictor, gate and up, down."""
        is_low = rows <= _LOW_ROWS
        return [
            self._predict_hidden(),
            self._multiply_gate_up(is_low),
            self._multiply_down(is_low),
        ]

    def count_workspace_bytes(self, rows: int) -> int:
        """The predictor's hidden values and those between the products, of the inputs' type."""
        inner = rows * self.network.channels * self.network.item_bytes
        return self.network.count_hidden_bytes(rows) + inner

    def plan(self, rows: int) -> list[Launch]:
        """All rows together."""
        net = self.network
        predict, gate_up, down = self.list_variants(rows)
        inner = Pointer(WORKSPACE, net.count_hidden_bytes(rows), net.dtype)
        num_banks = net.channels // net.bank_size
        return [
            _launch(predict, rows, net.rank, "BLOCK_RANK", (X, PREDICTOR_0, HIDDEN, rows)),
            _launch(
                gate_up, rows, num_banks, None, (X, HIDDEN, PREDICTOR_1, GATE, UP, inner, rows)
            ),
            _launch(down, rows, net.hidden_size, "BLOCK_D", (inner, DOWN, Y, rows)),
        ]

    def _predict_hidden(self) -> KernelVariant:
        net = self.network
        constants: dict[str, Constant] = {
            "D": net.hidden_size,
            "RANK": net.rank,
            "ACTIVATION": net.activation,
            "BLOCK_ROWS": 32,
            "BLOCK_RANK": 32,
            "BLOCK_D": net.fit_block(256, net.hidden_size),
        }
        return net.make_variant("predict_hidden_tile_kernel", ("x", "x", "f", "i32"), constants, 4)

    def _multiply_gate_up(self, is_low: bool) -> KernelVariant:
        net = self.network
        block_bank = pad_power(net.bank_size, 16)
        # Two products are summed up in registers; float32 is three numbers to tensor cores.
        high = (128 if block_bank <= 64 else 64) * 2 // net.item_bytes
        constants: dict[str, Constant] = {
            "D": net.hidden_size,
            "RANK": net.rank,
            "CHANNELS": net.channels,
            "BANK": net.bank_size,
            "TOP_K": net.top_k,
            "GATE_MODE": net.gate_mode,
            "BLOCK_ROWS": 16 if is_low else high,
            "BLOCK_BANK": block_bank,
            "BLOCK_RANK": 16,
            "BLOCK_D": net.fit_block(256 if is_low and block_bank <= 64 else 128, net.hidden_size),
        }
        types = ("x", "f", "x", "x", "x", "x", "i32")
        warps = 4 if is_low or net.item_bytes == 4 else 8
        return net.make_variant("multiply_gate_up_kernel", types, constants, warps)

    def _multiply_down(self, is_low: bool) -> KernelVariant:
        net = self.network
        constants: dict[str, Constant] = {
            "D": net.hidden_size,
            "CHANNELS": net.channels,
            "BLOCK_ROWS": 16 if is_low else 128,
            "BLOCK_D": 32 if is_low else 128,
            "BLOCK_CHANNELS": net.fit_block(256 if is_low else 128, net.channels),
        }
        types = ("x", "x", "x", "i32")
        return net.make_variant("multiply_down_kernel", types, constants, 4 if is_low else 8)


def _launch(
    variant: KernelVariant,
    rows: int,
    columns: int,
    block: str | None,
    arguments: tuple[Pointer | int, ...],
) -> Launch:
    """A grid of blocks of rows, and of `columns` in blocks of the constant of this name."""
    constants = dict(variant.constants)
    sizes = [constants["BLOCK_ROWS"], 1 if block is None else constants[block]]
    blocks = [-(-n // int(size)) for n, size in zip((rows, columns), sizes, strict=True)]
    return Launch(variant, (blocks[0], blocks[1], 1), arguments)
