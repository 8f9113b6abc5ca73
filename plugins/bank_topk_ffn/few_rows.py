"""The launches for few rows: a program takes some of one row's active channels.

Predictor, then the channels, then the sum of what they add. Three launches and not more, because
one takes microseconds and the whole of it some tens of them.
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

__all__ = ["FewRows", "count_few_rows"]

# About two programs for each multiprocessor of an A100 (108), an A6000 (84) and a 3090 (82).
_NUM_PROGRAMS = 192
_CHANNELS = (16, 8, 4)  # of a program: what it adds is written once for all of them
_BLOCK_SUM, _BLOCK_PARTS = 32, 64


def count_few_rows(bank_size: int, top_k: int) -> int:
    """Up to how many rows the active channels are read row by row, rather than all in tiles.

    With a share s = top_k / bank_size, r rows that share nothing read r * s of the weights, and
    r = 1/s of them as much as tiles do: up to there this way never reads more. It reads less where
    programs of different rows meet at a channel in the cache: channels chosen independently make
    1 - (1 - s)^r of the weights active, 0.68 at 4 rows of s = 1/4, 0.64 at 16 of s = 1/16. Beyond,
    what is saved of memory traffic soon is nothing, while what multiprocessors load from the cache
    and multiply without tensor cores goes on growing with r.
    """
    return max(1, bank_size // top_k)


@dataclass(frozen=True, slots=True)
class _Split:
    """How the active channels are shared out: by sizes alone, so that every GPU adds alike.

    `splits` programs share a group of `banks` neighbouring banks; each has `slots` channels.
    """

    banks: int
    splits: int
    slots: int


@dataclass(frozen=True, slots=True)
class FewRows:
    """The launches of a network."""

    network: Network

    def list_variants(self) -> list[KernelVariant]:
        """Predictor, channels, sum."""
        return [self._predict_hidden(), self._run_channels(), self._sum_parts()]

    def count_workspace_bytes(self, rows: int) -> int:
        """The predictor's hidden values and the parts, float32."""
        parts = rows * self._count_parts() * self.network.hidden_size * 4
        return self.network.count_hidden_bytes(rows) + parts

    def plan(self, rows: int) -> list[Launch]:
        """Row by row."""
        net = self.network
        predict, run, add = self.list_variants()
        parts = Pointer(WORKSPACE, net.count_hidden_bytes(rows))
        arguments = (X, HIDDEN, PREDICTOR_1, GATE, UP, DOWN, parts)
        return [
            Launch(predict, (rows, net.rank, 1), (X, PREDICTOR_0, HIDDEN)),
            Launch(run, (rows, self._count_parts(), 1), arguments),
            Launch(add, (rows, -(-net.hidden_size // _BLOCK_SUM), 1), (parts, Y)),
        ]

    def _split(self) -> _Split:
        net = self.network
        num_banks = net.channels // net.bank_size
        active = num_banks * net.top_k
        wanted = next((n for n in _CHANNELS if active >= n * _NUM_PROGRAMS), _CHANNELS[-1])
        if net.top_k >= wanted:
            splits = -(-net.top_k // wanted)
            return _Split(1, splits, -(-net.top_k // splits))
        banks = max(1, min(wanted // net.top_k, 128 // net.bank_size, num_banks))
        return _Split(banks, 1, banks * net.top_k)

    def _count_parts(self) -> int:
        split = self._split()
        num_banks = self.network.channels // self.network.bank_size
        return -(-num_banks // split.banks) * split.splits

    def _predict_hidden(self) -> KernelVariant:
        net = self.network
        constants: dict[str, Constant] = {
            "D": net.hidden_size,
            "RANK": net.rank,
            "ACTIVATION": net.activation,
            "BLOCK_D": net.fit_block(8192, net.hidden_size),
        }
        return net.make_variant("predict_hidden_kernel", "xxf", constants, warps=4)

    def _run_channels(self) -> KernelVariant:
        net, split = self.network, self._split()
        constants: dict[str, Constant] = {
            "D": net.hidden_size,
            "RANK": net.rank,
            "CHANNELS": net.channels,
            "BANK": net.bank_size,
            "TOP_K": net.top_k,
            "GATE_MODE": net.gate_mode,
            "BANKS": split.banks,
            "SPLITS": split.splits,
            "SLOTS": split.slots,
            "BLOCK_LOGITS": pad_power(split.banks * net.bank_size, 16),
            "BLOCK_RANK": net.fit_block(64, net.rank),
            "BLOCK_SLOTS": pad_power(split.slots, 4),
            "BLOCK_D": net.fit_block(512, net.hidden_size),
            "STAGES": 3,
        }
        return net.make_variant("run_channels_kernel", "xfxxxxf", constants, warps=4)

    def _sum_parts(self) -> KernelVariant:
        parts = self._count_parts()
        constants: dict[str, Constant] = {
            "D": self.network.hidden_size,
            "PARTS": parts,
            "BLOCK_PARTS": min(_BLOCK_PARTS, pad_power(parts)),
            "BLOCK_D": _BLOCK_SUM,
        }
        return self.network.make_variant("sum_parts_kernel", "fx", constants, warps=4)
