"""config.json to a `Backbone`: one table row for each architecture we know."""

from dataclasses import dataclass

from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.checkpoint.refusals import refuse_unsupported
from quatrain.exporter.checkpoint.rope import read_rope
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import Backbone

__all__ = ["ARCHITECTURES", "Architecture", "read_backbone"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """What transformers takes for granted in an architecture (its configuration_*.py).

    `qkv_bias` and `o_bias` are None where `attention_bias` of config.json decides.
    `num_key_value_heads` and `head_dim` are the defaults for absent keys (None: derived).
    """

    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    qkv_bias: bool | None = None
    o_bias: bool | None = None
    has_mlp_bias: bool = False
    qk_norm: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | None = None


# To add an architecture: a row here, and what it computes in exporter/decoder/.
ARCHITECTURES = {
    "llama": Architecture(2048, has_mlp_bias=True, bos_token_id=1, eos_token_id=2),
    "qwen2": Architecture(32768, num_key_value_heads=32, qkv_bias=True, o_bias=False),
    "qwen3": Architecture(32768, num_key_value_heads=32, head_dim=128, qk_norm=True),
}

_LATER = {
    "qwen3_scale_seq": "Hidden Decoding (Qwen3 with several embedding tables)",
    "welmv4_moe": "Hidden Decoding (WeLM, with a mixture of experts)",
}


def read_backbone(config: Fields) -> Backbone:
    """Read the backbone of a config.json; absent keys have transformers' defaults.

    The sizes have no defaults: a config.json without them is refused rather than guessed.

    Raises:
        CheckpointError: An unknown architecture, or a setting that is unsupported or malformed.
        SpecError: Sizes that no decoder can have.
    """
    model_type = config.text("model_type")
    architecture = _find_architecture(config, model_type)
    refuse_unsupported(config)
    if config.text("hidden_act", "silu") not in ("silu", "swish"):
        raise config.wrong("hidden_act", "silu, the only activation supported")
    rope = read_rope(config)
    attention_bias = config.flag("attention_bias", False)
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
        attention_bias=_choose(architecture.qkv_bias, attention_bias),
        attention_output_bias=_choose(architecture.o_bias, attention_bias),
        mlp_bias=architecture.has_mlp_bias and config.flag("mlp_bias", False),
        qk_norm=architecture.qk_norm,
    )


def _find_architecture(config: Fields, model_type: str) -> Architecture:
    if model_type in _LATER:
        raise CheckpointError(
            f"the decoder of model_type {model_type!r} in {config.source}",
            f"{_LATER[model_type]}: not supported yet, and not to be read as a plain decoder",
            "wait for the release that supports it",
        )
    if model_type not in ARCHITECTURES:
        raise CheckpointError(
            f"the decoder of model_type {model_type!r} in {config.source}",
            f"quatrain knows {', '.join(sorted(ARCHITECTURES))}",
            "use one of these, or add a row to ARCHITECTURES in exporter/checkpoint/backbone.py",
        )
    return ARCHITECTURES[model_type]


def _choose(fixed: bool | None, configured: bool) -> bool:
    return configured if fixed is None else fixed


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
