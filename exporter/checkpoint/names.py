"""The tensors a decoder needs: their names in the checkpoint, and their shapes."""

import re

from quatrain.exporter.spec import Backbone, BankTopK, DecoderSpec, Exits

__all__ = [
    "EMBEDDINGS",
    "LM_HEAD",
    "early_head_name",
    "expected_tensors",
    "feed_forward_name",
    "is_predictor",
    "stream_table_name",
]

EMBEDDINGS = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
_PREDICTOR = re.compile(r"model\.layers\.[0-9]+\.mlp\.predictor\..*")

Shapes = dict[str, tuple[int, ...]]


def expected_tensors(spec: DecoderSpec) -> Shapes:
    """Name and shape of every tensor that a checkpoint of this decoder must hold.

    Tied tensors are listed once, under the name of their source. Names and shapes are those of
    transformers' Llama, Qwen2 and Qwen3 models and of N-vium (github.com/ETH-DISCO/n-vium); those
    of the streams' tables are WeLM's, from its SGLang serving code; those of the predictors are
    quatrain's own, as no model with any is public. A layer that mirrors another one's keys and
    values has projections of its own all the same, and one with a dense fallback its predictor.
    """
    backbone = spec.backbone
    shapes: Shapes = {
        stream_table_name(stream): (backbone.vocab_size, backbone.hidden_size)
        for stream in range(spec.num_streams)
    }
    for layer in range(backbone.num_hidden_layers):
        shapes |= _attention(f"model.layers.{layer}.self_attn", backbone)
        shapes |= _feed_forward(f"model.layers.{layer}.mlp", backbone, spec.feed_forward)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{norm}.weight"] = (backbone.hidden_size,)
    shapes["model.norm.weight"] = (backbone.hidden_size,)
    if not backbone.tie_word_embeddings:
        shapes[LM_HEAD] = (backbone.vocab_size, backbone.hidden_size)
    if spec.exits is not None:
        shapes |= _exits(spec.exits, backbone)
    return shapes


def stream_table_name(stream: int) -> str:
    """The name of a stream's embedding table: the first one's is any decoder's own."""
    if stream == 0:
        return EMBEDDINGS
    return f"model.scale_seq_embed_tokens_list.{stream - 1}.weight"


def feed_forward_name(layer: int, part: str) -> str:
    """The name of a feed-forward weight: `part` is up_proj, say, or predictor.0."""
    return f"model.layers.{layer}.mlp.{part}.weight"


def is_predictor(name: str) -> bool:
    """Whether a tensor of this name is a part of a predictor (bank-top-k feed-forward)."""
    return _PREDICTOR.fullmatch(name) is not None


def early_head_name(exit_index: int) -> str:
    """The name of an early exit's own head."""
    return f"early_lm_heads.{exit_index}.weight"


def _attention(prefix: str, backbone: Backbone) -> Shapes:
    hidden, head_dim = backbone.hidden_size, backbone.head_dim
    query_size = backbone.num_attention_heads * head_dim
    key_size = backbone.num_key_value_heads * head_dim
    bias = backbone.attention_bias
    shapes = (
        _linear(f"{prefix}.q_proj", hidden, query_size, bias)
        | _linear(f"{prefix}.k_proj", hidden, key_size, bias)
        | _linear(f"{prefix}.v_proj", hidden, key_size, bias)
        | _linear(f"{prefix}.o_proj", query_size, hidden, backbone.attention_output_bias)
    )
    if backbone.qk_norm:
        shapes |= {f"{prefix}.{norm}.weight": (head_dim,) for norm in ("q_norm", "k_norm")}
    return shapes


def _feed_forward(prefix: str, backbone: Backbone, banks: BankTopK | None) -> Shapes:
    hidden, inner, bias = backbone.hidden_size, backbone.intermediate_size, backbone.mlp_bias
    shapes = (
        _linear(f"{prefix}.gate_proj", hidden, inner, bias)
        | _linear(f"{prefix}.up_proj", hidden, inner, bias)
        | _linear(f"{prefix}.down_proj", inner, hidden, bias)
    )
    rank = None if banks is None else banks.predictor_rank
    if rank is not None:
        shapes |= _linear(f"{prefix}.predictor.0", hidden, rank, False)
        shapes |= _linear(f"{prefix}.predictor.1", rank, inner, False)
    return shapes


def _exits(exits: Exits, backbone: Backbone) -> Shapes:
    hidden = backbone.hidden_size
    shapes: Shapes = {}
    for k in range(len(exits.layers)):
        shapes[f"early_norms.{k}.weight"] = (hidden,)
        shapes |= _adapter(f"early_adapters.{k}", hidden, exits.adapter_size)
        shapes |= _router(k, exits, hidden)
        if exits.early_head == "own":
            shapes[early_head_name(k)] = (backbone.vocab_size, hidden)
    return shapes | _adapter("final_adapter", hidden, exits.final_adapter_size)


def _adapter(prefix: str, hidden: int, size: int | None) -> Shapes:
    if size is None:
        return {}
    return _linear(f"{prefix}.0", hidden, size, False) | _linear(f"{prefix}.2", size, hidden, False)


def _router(k: int, exits: Exits, hidden: int) -> Shapes:
    router = exits.router
    shapes: Shapes = {f"router_final_norms.{k}.weight": (router.hidden_size,)}
    for j in range(router.num_layers):
        block = f"router_layers.{k}.layers.{j}"
        fan_in = router.hidden_size if j else hidden
        shapes |= _linear(f"{block}.fc1", fan_in, router.intermediate_size, True)
        shapes |= _linear(f"{block}.fc2", router.intermediate_size, router.hidden_size, True)
    return shapes | _linear(f"router_heads.{k}", router.hidden_size, 2, True)


def _linear(name: str, fan_in: int, fan_out: int, bias: bool) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (fan_out, fan_in)}
    if bias:
        shapes[f"{name}.bias"] = (fan_out,)
    return shapes
