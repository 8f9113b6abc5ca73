"""Write a Llama checkpoint with SmolLM's tokenizer as a GGUF file, for llama.cpp as a peer.

    python -m benchmarks._llama_cpp_model CHECKPOINT OUT --precision fp32|int4

`OUT` becomes a folder with one file, `model.gguf`. int4 is llama.cpp's own Q4_0, which it makes of
the fp32 file.
"""

import argparse
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samples._gguf_model import LAYER_NAMES, TOP_LEVEL_NAMES

__all__ = ["permute", "write_gguf"]

Array = NDArray[Any]

# llama_ftype in llama.h
_MOSTLY_Q4_0 = 2


def permute(weight: Array, heads: int) -> Array:
    """Order the rows of a query or key projection as llama.cpp rotates them.

    It rotates neighbouring rows of a head, transformers the two halves of a head.
    """
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(checkpoint: Path, file: Path) -> None:
    """Write the weights in float32, the settings and the tokenizer of a checkpoint."""
    from gguf import GGUFWriter

    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama":
        raise ValueError(f"only Llama checkpoints, and this is {config['model_type']!r}")
    writer = GGUFWriter(file, "llama")
    _add_config(writer, config)
    _add_tokenizer(writer, checkpoint, config)
    for name, weight in _read_weights(checkpoint, config):
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_config(writer: Any, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(0)


def _add_tokenizer(writer: Any, checkpoint: Path, config: dict[str, Any]) -> None:
    from gguf import TokenType

    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text(encoding="utf-8"))
    special = {item["content"] for item in tokenizer["added_tokens"] if item["special"]}
    ids = {**tokenizer["model"]["vocab"]}
    ids |= {item["content"]: item["id"] for item in tokenizer["added_tokens"]}
    tokens = sorted(ids, key=lambda token: int(ids[token]))
    if len(tokens) != config["vocab_size"]:
        raise ValueError(f"{len(tokens)} tokens for a vocabulary of {config['vocab_size']}")
    merges = tokenizer["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if t in special else TokenType.NORMAL for t in tokens]
    )
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _read_weights(checkpoint: Path, config: dict[str, Any]) -> Iterator[tuple[str, Array]]:
    from safetensors import safe_open

    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }
    names = {f"{ours}.weight": f"{theirs}.weight" for theirs, ours in TOP_LEVEL_NAMES.items()}
    for layer in range(config["num_hidden_layers"]):
        for theirs, ours in LAYER_NAMES.items():
            names[f"model.layers.{layer}.{ours}.weight"] = f"blk.{layer}.{theirs}.weight"
    for file in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as weights:
            for name in weights.keys():  # noqa: SIM118 - not a dict
                weight = weights.get_tensor(name).astype(np.float32)
                kind = names[name].split(".")[-2]
                yield names[name], permute(weight, heads[kind]) if kind in heads else weight


def main() -> None:
    """Write what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--precision", choices=("fp32", "int4"), default="fp32")
    arguments = parser.parse_args()

    arguments.out.mkdir(parents=True)
    file = arguments.out / "model.gguf"
    if arguments.precision == "fp32":
        write_gguf(arguments.checkpoint, file)
        return
    whole = arguments.out / "fp32.gguf"
    write_gguf(arguments.checkpoint, whole)
    _round_to_4_bits(whole, file)
    whole.unlink()


def _round_to_4_bits(source: Path, file: Path) -> None:
    llama = import_module("llama_cpp")
    setting = llama.llama_model_quantize_default_params()
    setting.ftype = _MOSTLY_Q4_0
    paths = (str(source).encode(), str(file).encode())
    if llama.llama_model_quantize(*paths, setting):
        raise RuntimeError(f"llama.cpp could not quantize {source}")


if __name__ == "__main__":
    main()
