"""The tensors a decoder needs: their names in the checkpoint, and their shapes."""

import re

from quatrain.exporter.spec import Backbone, BankTopK, DecoderSpec, Drafter, Exits

__all__ = [
    "EMBEDDINGS",
    "LM_HEAD",
    "attention_name",
    "dynamics_model_name",
    "early_head_name",
    "expected_tensors",
    "feed_forward_name",
    "is_dynamics",
    "is_lower_dynamics",
    "is_predictor",
    "lower_dynamics_name",
    "stream_table_name",
]

EMBEDDINGS = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
_LOWER_DYNAMICS = "lower_dynamics"  # HiLP
_DYNAMICS_MODEL = "dynamics_model"  # NextLat
_PREDICTOR = re.compile(r"model\.layers\.[0-9]+\.mlp\.predictor\..*")

Shapes = dict[str, tuple[int, ...]]


def expected_tensors(spec: DecoderSpec) -> Shapes:
    """Name and shape of every tensor that a checkpoint of this decoder must hold.

    Tied tensors are listed once, under the name of their source. Names and shapes are those of
    transformers' Llama, Qwen2 and Qwen3 models and of N-vium (github.com/ETH-DISCO/n-vium); those
    of the streams' tables are WeLM's, from its SGLang serving code; those of NextLat's dynamics
    are its own (github.com/JaydenTeoh/NextLat); those of the predictors and of HiLP's dynamics are
    quatrain's, as no model with any is public. A layer that mirrors another one's keys and values
    has projections of its own all the same, and one with a dense fallback its predictor.
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
    if spec.drafter is not None:
        shapes |= _dynamics(spec.drafter, backbone.hidden_size)
    return shapes


def stream_table_name(stream: int) -> str:
    """The name of a stream's embedding table: the first one's is any decoder's own."""
    if stream == 0:
        return EMBEDDINGS
    return f"model.scale_seq_embed_tokens_list.{stream - 1}.weight"


def attention_name(layer: int, part: str) -> str:
    """The name of a weight of attention: `part` is q_proj, say."""
    return f"model.layers.{layer}.self_attn.{part}.weight"


def feed_forward_name(layer: int, part: str) -> str:
    """The name of a feed-forward weight: `part` is up_proj, say, or predictor.0."""
    return f"model.layers.{layer}.mlp.{part}.weight"


def is_predictor(name: str) -> bool:
    """Whether a tensor of this name is a part of a predictor (bank-top-k feed-forward)."""
    return _PREDICTOR.fullmatch(name) is not None


def lower_dynamics_name(part: str) -> str:
    """The name of a weight of HiLP's low-level dynamics: `part` is w_h, w_e, gate, up or down."""
    return f"{_LOWER_DYNAMICS}.{part}.weight"


def dynamics_model_name(part: str) -> str:
    """The name of a weight of NextLat's dynamics: `part` is norm_x or mlp.0, mlp.2, mlp.4."""
    return f"{_DYNAMICS_MODEL}.{part}.weight"


def is_lower_dynamics(name: str) -> bool:
    """Whether a tensor of this name is a part of HiLP's low-level dynamics."""
    return name.startswith(f"{_LOWER_DYNAMICS}.")


def is_dynamics(name: str) -> bool:
    """Whether a tensor of this name is a part of a drafter, HiLP's or NextLat's."""
    return is_lower_dynamics(name) or name.startswith(f"{_DYNAMICS_MODEL}.")


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


def _dynamics(drafter: Drafter, hidden: int) -> Shapes:
    inner = drafter.inner_size
    if drafter.kind == "nextlat":
        return {
            dynamics_model_name("norm_x"): (2 * hidden,),
            dynamics_model_name("mlp.0"): (inner, 2 * hidden),
            dynamics_model_name("mlp.2"): (inner, inner),
            dynamics_model_name("mlp.4"): (hidden, inner),
        }
    is_glu_cross = drafter.kind == "glu_cross"
    crossed = ("w_h", "w_e") if is_glu_cross else ()
    fan_in = hidden if is_glu_cross else 2 * hidden
    shapes: Shapes = {lower_dynamics_name(part): (hidden, hidden) for part in crossed}
    return shapes | {
        lower_dynamics_name("gate"): (inner, fan_in),
        lower_dynamics_name("up"): (inner, fan_in),
        lower_dynamics_name("down"): (hidden, inner),
    }


def _linear(name: str, fan_in: int, fan_out: int, bias: bool) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (fan_out, fan_in)}
    if bias:
        shapes[f"{name}.bias"] = (fan_out,)
    return shapes
