"""The backbone: what every decoder is made of, whatever its axes."""

from dataclasses import dataclass
from typing import Literal

from quatrain.exporter.errors import SpecError

__all__ = ["Backbone", "DType", "LinearRopeScaling", "Llama3RopeScaling", "RopeScaling"]

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
    `qk_norm` is Qwen3's RMSNorm over each query and key head. `sliding_windows` has an entry for
    each layer, or none at all: how many keys a query of that layer sees, its own included, or None
    for all before it. They are counted in what the layer attends over: tokens, or in the
    cross-stream layers of a model with streams rows.
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
    sliding_windows: tuple[int | None, ...] = ()

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
        _check_windows(self.sliding_windows, self.num_hidden_layers)

    def window(self, layer: int) -> int | None:
        """The sliding window of a layer, None where it sees everything before it."""
        return self.sliding_windows[layer] if self.sliding_windows else None


def _check_windows(windows: tuple[int | None, ...], num_hidden_layers: int) -> None:
    if windows and len(windows) != num_hidden_layers:
        raise SpecError(
            f"sliding windows for {len(windows)} layers",
            f"the decoder has {num_hidden_layers}",
            "give one for each layer in config.json, or none",
        )
    for layer, window in enumerate(windows):
        if window is not None and window < 1:
            raise SpecError(
                f"a sliding window of {window} in layer {layer}",
                "a row sees itself at least, so a window is 1 or more",
                "correct the sliding windows in config.json (-1: none)",
            )
