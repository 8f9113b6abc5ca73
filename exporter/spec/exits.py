"""The depth axis: a mixture over exits at several depths."""

from dataclasses import dataclass
from typing import Literal

from quatrain.exporter.errors import SpecError

__all__ = ["Exits", "Router", "check_exit_layers"]


@dataclass(frozen=True, slots=True)
class Router:
    """The exit router: `num_layers` MLP blocks, an RMSNorm and a two-way head.

    `hidden_size` is R and `intermediate_size` I of N-vium's `router` settings; `temperature`
    divides the two logits before the softmax.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class Exits:
    """The depth axis (N-vium, arXiv 2605.13190): a mixture over exits at several depths.

    Exit k sits after `layers[k]` decoder layers; the final exit, after all layers, is not listed.
    `adapter_size` and `final_adapter_size` are the widths of the residual adapters (None: off).
    `early_head` says where an early exit's logits come from: the model's own `lm_head`, the
    `embeddings`, or a head of its `own` (`early_lm_heads.{k}`).
    """

    layers: tuple[int, ...]
    router: Router
    adapter_size: int | None = None
    final_adapter_size: int | None = None
    early_head: Literal["lm_head", "embeddings", "own"] = "lm_head"

    @property
    def num_exits(self) -> int:
        """How many exits there are, the final one included."""
        return len(self.layers) + 1


def check_exit_layers(layers: tuple[int, ...], num_hidden_layers: int) -> None:
    """Raise `SpecError` for exits that no decoder of so many layers can have."""
    increasing = list(layers) == sorted(set(layers))
    if not layers or not increasing or layers[0] < 1 or layers[-1] >= num_hidden_layers:
        raise SpecError(
            f"exits after layers {list(layers)} of {num_hidden_layers}",
            "exits must be distinct, increasing, after layer 1 or later and before the last",
            "correct early_layer_idx in the N-vium settings",
        )
