"""What a decoder is: one backbone and the axes that set it apart from a plain one.

The families are independent features of one decoder, so each axis is its own frozen dataclass and
`None` where a model does not have it. Field names are Hugging Face's wherever it has one.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from quatrain.exporter.errors import SpecError

__all__ = [
    "Backbone",
    "DType",
    "DecoderSpec",
    "Exits",
    "LinearRopeScaling",
    "Llama3RopeScaling",
    "RopeScaling",
    "Router",
]

DType = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True, slots=True)
class LinearRopeScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3RopeScaling:
    """Llama 3.1's frequency-dependent scaling (transformers `rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


RopeScaling = LinearRopeScaling | Llama3RopeScaling


@dataclass(frozen=True, slots=True)
class Backbone:
    """A Llama, Qwen2 or Qwen3 decoder: RMSNorm, RoPE, grouped-query attention, SwiGLU.

    `attention_bias` is the bias of q, k and v; `attention_output_bias` that of o_proj;
    `qk_norm` is Qwen3's RMSNorm over each query and key head.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
        ):
            if getattr(self, name) < 1:
                raise SpecError(
                    f"a decoder with {name} = {getattr(self, name)}",
                    f"{name} must be at least 1",
                    "correct config.json",
                )
        if self.num_attention_heads % self.num_key_value_heads:
            raise SpecError(
                f"{self.num_attention_heads} attention heads over "
                f"{self.num_key_value_heads} key/value heads",
                "grouped-query attention needs a whole number of query heads per key/value head",
                "correct num_attention_heads and num_key_value_heads in config.json",
            )
        if self.head_dim % 2:
            raise SpecError(
                f"rotary embedding over head_dim = {self.head_dim}",
                "it rotates pairs, so head_dim must be even",
                "correct head_dim in config.json",
            )

    @property
    def cache_elements_per_token(self) -> int:
        """Numbers in the cache of one token: a key and a value for every layer and its heads."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim


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


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """One decoder: a backbone and its axes. Combinations that make no sense are refused here."""

    backbone: Backbone
    exits: Exits | None = None

    def __post_init__(self) -> None:
        if self.exits is not None:
            _check_exit_layers(self.exits.layers, self.backbone.num_hidden_layers)

    @property
    def family(self) -> str:
        """The name a user knows this decoder by."""
        return "dense" if self.exits is None else "nvium"

    @property
    def segments(self) -> tuple[range, ...]:
        """The decoder layers of each graph: cut at the exits, whole where there are none."""
        cuts = () if self.exits is None else self.exits.layers
        bounds = (0, *cuts, self.backbone.num_hidden_layers)
        return tuple(range(a, b) for a, b in pairwise(bounds))


def _check_exit_layers(layers: tuple[int, ...], num_hidden_layers: int) -> None:
    increasing = list(layers) == sorted(set(layers))
    if not layers or not increasing or layers[0] < 1 or layers[-1] >= num_hidden_layers:
        raise SpecError(
            f"exits after layers {list(layers)} of {num_hidden_layers}",
            "exits must be distinct, increasing, after layer 1 or later and before the last",
            "correct early_layer_idx in the N-vium settings",
        )
