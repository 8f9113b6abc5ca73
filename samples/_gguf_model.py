"""Turn the model half of a Llama GGUF file (metadata and tensors) into Hugging Face terms."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

TOP_LEVEL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def open_gguf(path: Path) -> Any:
    """Open a GGUF file for reading; the tensors stay memory-mapped."""
    from gguf import GGUFReader

    return GGUFReader(path)


def read_metadata(reader: Any) -> dict[str, Any]:
    """Return every key/value field of an opened GGUF file as plain Python values."""
    return {key: field.contents() for key, field in reader.fields.items()}


def hf_name(gguf_name: str) -> str:
    """Translate a llama.cpp tensor name into the name that transformers uses."""
    parts = gguf_name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES:
        return f"model.layers.{int(parts[1])}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in TOP_LEVEL_NAMES:
        return f"{TOP_LEVEL_NAMES[parts[0]]}.{parts[1]}"
    raise ValueError(f"unexpected tensor in a Llama GGUF file: {gguf_name!r}")


def unpermute(weight: Array, heads: int) -> Array:
    """Undo the row order that llama.cpp gives the query and key projections.

    llama.cpp rotates neighbouring rows of a head (0 with 1, 2 with 3, ...), transformers
    rotates row i with row i + head_dim / 2, so llama.cpp's converter interleaves the two
    halves of every head. Reading the pairs column-wise puts the halves back.
    """
    rows = weight.shape[0]
    if heads <= 0 or rows % (2 * heads):
        raise ValueError(f"{rows} rows do not split into {heads} heads of even size")
    pairs = weight.reshape(heads, rows // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def llama_config(metadata: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    """Build the content of ``config.json`` from GGUF metadata."""
    architecture = metadata["general.architecture"]
    if architecture != "llama":
        raise ValueError(f"expected a 'llama' GGUF file, found {architecture!r}")
    hidden = int(metadata["llama.embedding_length"])
    heads = int(metadata["llama.attention.head_count"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float16",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "use_cache": True,
        "num_hidden_layers": int(metadata["llama.block_count"]),
        "hidden_size": hidden,
        "intermediate_size": int(metadata["llama.feed_forward_length"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(metadata.get("llama.attention.head_count_kv", heads)),
        "head_dim": int(metadata.get("llama.rope.dimension_count", hidden // heads)),
        "max_position_embeddings": int(metadata["llama.context_length"]),
        "rope_theta": _shortest(metadata.get("llama.rope.freq_base", 10000.0)),
        "rms_norm_eps": _shortest(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "vocab_size": _vocab_size(metadata),
        **special_token_ids(metadata),
    }


def special_token_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of the begin, end and padding tokens that the file declares."""
    keys = {
        "bos_token_id": "tokenizer.ggml.bos_token_id",
        "eos_token_id": "tokenizer.ggml.eos_token_id",
        "pad_token_id": "tokenizer.ggml.padding_token_id",
    }
    return {name: int(metadata[key]) for name, key in keys.items() if key in metadata}


def half_tensors(tensors: Iterable[Any], heads: int, kv_heads: int) -> dict[str, Array]:
    """Dequantize every tensor, one at a time, into fp16 under its Hugging Face name."""
    from gguf import dequantize

    result: dict[str, Array] = {}
    for tensor in tensors:
        name = hf_name(tensor.name)
        values = dequantize(tensor.data, tensor.tensor_type)
        if name.endswith("q_proj.weight"):
            values = unpermute(values, heads)
        elif name.endswith("k_proj.weight"):
            values = unpermute(values, kv_heads)
        result[name] = _to_half(name, values)
    return result


def _to_half(name: str, values: Array) -> Array:
    half = np.ascontiguousarray(values, dtype=np.float16)
    if not np.isfinite(half).all():
        raise ValueError(f"{name} does not fit into fp16")
    return half


def _vocab_size(metadata: Mapping[str, Any]) -> int:
    if "llama.vocab_size" in metadata:
        return int(metadata["llama.vocab_size"])
    return len(metadata["tokenizer.ggml.tokens"])


def _shortest(value: float) -> float:
    """Return the shortest decimal that reads back as the same fp32 number (1e-05)."""
    return float(str(np.float32(value)))
