"""config.json to a `Backbone`: one table row for each architecture we know."""

from dataclasses import dataclass

from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.checkpoint.refusals import refuse_unsupported
from quatrain.exporter.checkpoint.rope import read_rope
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import Backbone

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "is_scale_seq",
    "read_backbone",
    "read_base_model_type",
]


@dataclass(frozen=True, slots=True)
class Architecture:
    """What transformers takes for granted in an architecture (its configuration_*.py).

    `qkv_bias` and `o_bias` are None where `attention_bias` of config.json decides.
    `num_key_value_heads` and `head_dim` are the defaults for absent keys (None: derived).
    `has_sliding_window` is whether its layers can slide: Llama takes no notice of the settings.
    """

    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    qkv_bias: bool | None = None
    o_bias: bool | None = None
    has_mlp_bias: bool = False
    qk_norm: bool = False
    has_sliding_window: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | None = None


# To add an architecture: a row here, and what it computes in exporter/decoder/.
ARCHITECTURES = {
    "llama": Architecture(2048, has_mlp_bias=True, bos_token_id=1, eos_token_id=2),
    "qwen2": Architecture(
        32768, num_key_value_heads=32, qkv_bias=True, o_bias=False, has_sliding_window=True
    ),
    "qwen3": Architecture(
        32768, num_key_value_heads=32, head_dim=128, qk_norm=True, has_sliding_window=True
    ),
}

# Hidden Decoding's own names: the architecture before it, with several embedding tables. Only
# qwen3_scale_seq is public (Tencent's Sequential-Hidden-Decoding-8B models); quatrain writes the
# others, so that no tool mistakes such a checkpoint for a plain decoder.
_SCALE_SEQ = "_scale_seq"

_ACTIVATIONS = ("silu", "swish")  # two names of one function

_UNSUPPORTED = {
    "welmv4_moe": "WeLM's mixture of experts, over-encoding embeddings, attention gates, attention "
    "sinks and half-rotated heads are not supported",
}


def read_base_model_type(config: Fields) -> str:
    """The architecture of a config.json, a key of `ARCHITECTURES`: its model_type, without the
    `_scale_seq` of Hidden Decoding.

    Raises:
        CheckpointError: An unknown or unsupported architecture.
    """
    model_type = config.text("model_type")
    base = model_type.removesuffix(_SCALE_SEQ)
    if base in ARCHITECTURES:
        return base
    known = ", ".join(sorted(ARCHITECTURES))
    asked = f"the decoder of model_type {model_type!r} in {config.source}"
    if model_type in _UNSUPPORTED:
        raise CheckpointError(
            asked,
            f"{_UNSUPPORTED[model_type]}; read as a plain decoder it would give wrong numbers",
            f"use a checkpoint of {known}, each with or without {_SCALE_SEQ}",
        )
    raise CheckpointError(
        asked,
        f"quatrain knows {known}, and each of them with {_SCALE_SEQ}",
        "use one of these, or add a row to ARCHITECTURES in exporter/checkpoint/backbone.py",
    )


def is_scale_seq(config: Fields) -> bool:
    """Whether model_type says that the decoder is one of Hidden Decoding."""
    return config.text("model_type").endswith(_SCALE_SEQ)


def read_backbone(config: Fields) -> Backbone:
    """Read the backbone of a config.json; absent keys have transformers' defaults.

    The sizes have no defaults: a config.json without them is refused rather than guessed.
    `model_type` of the result is the base architecture's, "qwen3" for qwen3_scale_seq. The sliding
    windows are read apart (windows.py), as the streams decide what they are counted in.

    Raises:
        CheckpointError: An unknown architecture, or a setting that is unsupported or malformed.
        SpecError: Sizes that no decoder can have.
    """
    model_type = read_base_model_type(config)
    architecture = ARCHITECTURES[model_type]
    refuse_unsupported(config)
    if config.text("hidden_act", "silu") not in _ACTIVATIONS:
        raise config.unknown("hidden_act", _ACTIVATIONS)
    rope = read_rope(config)
    attention_bias = config.flag("attention_bias", False)
    qkv_bias = _choose(architecture.qkv_bias, attention_bias)
    _refuse_other_bias(config, qkv_bias)
    heads = config.integer("num_attention_heads")
    return Backbone(
        model_type=model_type,
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_hidden_layers=config.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=_read_key_value_heads(config, architecture, heads),
        head_dim=_read_head_dim(config, architecture, heads),
        max_position_embeddings=config.integer(
            "max_position_embeddings", architecture.max_position_embeddings
        ),
        rms_norm_eps=_read_eps(config),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        attention_bias=qkv_bias,
        attention_output_bias=_choose(architecture.o_bias, attention_bias),
        mlp_bias=architecture.has_mlp_bias and config.flag("mlp_bias", False),
        qk_norm=architecture.qk_norm,
    )


def _choose(fixed: bool | None, configured: bool) -> bool:
    return configured if fixed is None else fixed


def _refuse_other_bias(config: Fields, qkv_bias: bool) -> None:
    # WeLM's spellings; transformers takes no notice of them.
    for key in ("qkv_proj_bias", "qkv_bias"):
        if config.flag(key, False) and not qkv_bias:
            raise CheckpointError(
                f"a decoder with {key} = True in {config.source}",
                f"its {config.text('model_type')} layers have no bias of queries, keys and values",
                f"remove {key} if the weights have no such biases",
            )


def _read_key_value_heads(config: Fields, architecture: Architecture, heads: int) -> int:
    if config.has_key("num_key_value_heads"):  # null means one for each query head
        return config.integer("num_key_value_heads", heads)
    return heads if architecture.num_key_value_heads is None else architecture.num_key_value_heads


def _read_head_dim(config: Fields, architecture: Architecture, heads: int) -> int:
    if config.has("head_dim"):
        return config.integer("head_dim")
    if architecture.head_dim is not None and not config.has_key("head_dim"):
        return architecture.head_dim
    hidden = config.integer("hidden_size")
    if heads < 1 or hidden % heads:
        raise config.wrong(
            "num_attention_heads", f"a divisor of hidden_size = {hidden}, as head_dim is not given"
        )
    return hidden // heads


def _read_eps(config: Fields) -> float:
    eps = config.number("rms_norm_eps", 1e-6)
    if eps < 0:
        raise config.wrong("rms_norm_eps", "a number of 0 or more")
    return eps
