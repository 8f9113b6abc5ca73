"""The width axis: a predictor picks the channels of the feed-forward network before it runs."""

from dataclasses import dataclass
from typing import Literal

from quatrain.exporter.errors import SpecError

__all__ = ["BankTopK", "GateMode", "PredictorActivation", "check_bank_top_k"]

GateMode = Literal["sigmoid", "hard", "silu"]
PredictorActivation = Literal["relu", "silu"]


@dataclass(frozen=True, slots=True)
class BankTopK:
    """Of every bank of `bank_size` neighbouring channels, `top_k` run (arXiv 2606.10722).

    With u = W_gate x and v = W_up x a channel's value is m * gate * u * v, where m is 1 for the
    `top_k` channels of each bank with the largest logits p = P1 act(P0 x) (equal ones: the lowest
    index) and 0 for the others, and `gate_mode` says what the gate is: `sigmoid` sigma(p), `hard`
    1, `silu` sigma(u). `predictor_rank` is the width between P0 and P1.

    Without a predictor (`predictor_rank` None) the channels kept are those with the largest
    |SiLU(u) * v|: sparse after the fact, which skips no work but that of the last product
    ("Dense-4x" for 16 of 64, the paper's baseline). Its gate is `silu`.

    In `dense_fallback_layers` m is 1 throughout, and the gate stays.
    """

    bank_size: int
    top_k: int
    predictor_rank: int | None
    gate_mode: GateMode = "sigmoid"
    predictor_activation: PredictorActivation | None = None
    dense_fallback_layers: tuple[int, ...] = ()


def check_bank_top_k(banks: BankTopK, intermediate_size: int, num_hidden_layers: int) -> None:
    """Raise `SpecError` for banks that no decoder of this size can have."""
    fix = "correct bank_topk in config.json"
    if banks.bank_size < 1 or intermediate_size % banks.bank_size:
        raise SpecError(
            f"banks of {banks.bank_size} channels in a feed-forward of {intermediate_size}",
            "intermediate_size must be a whole number of banks",
            f"{fix} (bank_size)",
        )
    if not 1 <= banks.top_k <= banks.bank_size:
        raise SpecError(
            f"{banks.top_k} active channels of {banks.bank_size} in a bank",
            "there must be at least 1, and no more than the bank has",
            f"{fix} (top_k)",
        )
    if banks.predictor_rank is not None and banks.predictor_rank < 1:
        raise SpecError(f"a predictor of rank {banks.predictor_rank}", "it must be at least 1", fix)
    if banks.predictor_rank is None and banks.gate_mode != "silu":
        raise SpecError(
            f"the gate mode {banks.gate_mode} without a predictor",
            "there are no logits to gate with, so the gate is the backbone's own, silu",
            f"{fix} (gate_mode)",
        )
    layers = banks.dense_fallback_layers
    outside = [layer for layer in layers if not 0 <= layer < num_hidden_layers]
    if outside or len(set(layers)) != len(layers):
        raise SpecError(
            f"a dense fallback in the layers {', '.join(map(str, layers))}",
            f"the decoder has the layers 0 to {num_hidden_layers - 1}, each of them once",
            f"{fix} (dense_fallback_layers), or --dense-fallback",
        )
