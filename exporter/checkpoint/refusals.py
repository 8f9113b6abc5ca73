"""Settings that change what a model computes and that quatrain does not know how to compute."""

from collections.abc import Callable
from dataclasses import dataclass

from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.errors import CheckpointError

__all__ = ["refuse_unsupported"]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A setting, what it means, and the values that make no difference."""

    key: str
    meaning: str
    is_harmless: Callable[[object], bool]


def _is_off(value: object) -> bool:
    return value is None or value is False or value == 0 or value in ([], {}, "")


def _is_empty(value: object) -> bool:
    return value is None or value == []


def _is_off_everywhere(value: object) -> bool:
    return not any(value) if isinstance(value, list) else _is_off(value)


def _is_one(value: object) -> bool:
    return value is None or value == 1


_REFUSALS = (
    _Refusal(
        "nextlat",
        "NextLat is read from its own layout, a materialized_config.yaml and a .pt file",
        _is_off,
    ),
    _Refusal("quantization_config", "weights that are already quantized", _is_off),
    _Refusal("compression_config", "weights that are already compressed", _is_off),
    _Refusal("partial_rotary_factor", "rotation of a part of each head only", _is_one),
    _Refusal("attn_logit_softcapping", "soft-capped attention scores", _is_off),
    _Refusal("final_logit_softcapping", "soft-capped logits", _is_off),
    _Refusal("clip_qkv", "clipped queries, keys and values", _is_off),
    _Refusal("logits_scaling", "scaled logits", _is_one),
    _Refusal("logit_scale", "scaled logits", _is_one),
    _Refusal("embedding_multiplier", "scaled embeddings", _is_one),
    _Refusal("scale_emb", "scaled embeddings", _is_one),
    _Refusal("residual_multiplier", "scaled residuals", _is_one),
    _Refusal("scale_depth", "scaled residuals", _is_one),
    _Refusal("attention_multiplier", "its own attention scale", _is_off),
    _Refusal("query_pre_attn_scalar", "its own attention scale", _is_off),
    _Refusal("num_experts", "a mixture of experts", _is_off),
    _Refusal("num_local_experts", "a mixture of experts", _is_off),
    _Refusal("n_routed_experts", "a mixture of experts", _is_off),
    _Refusal("moe_intermediate_size", "a mixture of experts", _is_off),
    _Refusal("no_rope_layers", "layers without rotary embedding", _is_off),
    _Refusal("alibi", "ALiBi positions", _is_off),
    _Refusal("attention_chunk_size", "attention in chunks", _is_off),
    _Refusal("use_qk_norm", "normed queries and keys outside Qwen3", _is_off),
    _Refusal("attention_sinks", "attention sinks", _is_off),
    _Refusal("enable_attn_sink_layerwise", "attention sinks", _is_off_everywhere),
    _Refusal("oe_grams", "over-encoding (n-gram) embeddings", _is_off),
    _Refusal("oe_vocab_sizes", "over-encoding (n-gram) embeddings", _is_off),
    _Refusal("prenorm_layer_idx", "norms after the sublayers", _is_empty),
    _Refusal("o_norm", "a norm of the attention output", _is_off),
    _Refusal("qk_rope_head_dim", "rotation of a part of each head only", _is_off),
    _Refusal("num_nextn_predict_layers", "layers that predict further tokens (MTP)", _is_off),
    _Refusal("is_encoder_decoder", "an encoder", _is_off),
)


def refuse_unsupported(config: Fields) -> None:
    """Refuse a config.json with a setting that would silently be left out of the numbers.

    Raises:
        CheckpointError: Names the setting.
    """
    for refusal in _REFUSALS:
        value = config.get(refusal.key)
        if not refusal.is_harmless(value):
            raise CheckpointError(
                f"a decoder with {refusal.key} = {_show(value)} in {config.source}",
                refusal.meaning,
                "use a checkpoint without it; reading on would give wrong numbers silently",
            )


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
