"""Small checkpoint folders for tests, whole or damaged on purpose."""

import copy
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import yaml
from numpy.typing import NDArray
from safetensors.numpy import save_file

from quatrain.exporter.checkpoint.names import expected_tensors
from quatrain.exporter.spec import Backbone, DecoderSpec, Exits, Router

GOLDEN = Path(__file__).parents[2] / "golden"
GOLDEN_NVIUM = GOLDEN / "nvium" / "checkpoint"

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BACKBONE = Backbone("llama", 48, 16, 24, 3, 4, 2, 4, 64, rms_norm_eps=1e-5)
DENSE = DecoderSpec(BACKBONE)

NVIUM = {
    "model_type": "multihead",
    "early_layer_idx": [1, 2],
    "decode_head": "mix",
    "tying": {
        "tie_final_to_embeddings": False,
        "tie_early_to_final": True,
        "tie_early_to_embeddings": False,
    },
    "router": {
        "router_type": "simple_mlp",
        "router_temp": 0.5,
        "hidden_size": 8,
        "intermediate_size": 6,
        "num_layers": 1,
    },
    "early_adapter": {"enabled": True, "dim": 10},
    "final_adapter": {"enabled": True, "dim": 12},
}
EXITS = Exits((1, 2), Router(1, 8, 6, 0.5), 10, 12, "lm_head")

Arrays = dict[str, NDArray[Any]]


def random_tensors(spec: DecoderSpec, dtype: Any = ml_dtypes.bfloat16) -> Arrays:
    """Every tensor of a decoder, filled with numbers."""
    rng = np.random.default_rng(0)
    shapes = expected_tensors(spec)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_checkpoint(
    folder: Path, tensors: Arrays, config: Mapping[str, object] = LLAMA, **changes: object
) -> Path:
    """Write config.json, with `changes`, and model.safetensors."""
    write_json(folder / "config.json", {**config, **changes})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_dense(folder: Path, **changes: object) -> Path:
    return write_checkpoint(folder, random_tensors(DENSE), **changes)


def write_source(folder: Path, dtype: Any = np.float32) -> Path:
    """A dense checkpoint to fit something to: its weights are of a size that keeps activations
    small enough for any predictor to be told from another."""
    tensors = random_tensors(DENSE, dtype)
    tensors = {n: t if t.ndim == 1 else (t / 4).astype(dtype) for n, t in tensors.items()}
    return write_checkpoint(folder, tensors)


def write_nvium(
    folder: Path,
    exits: Exits = EXITS,
    settings: Mapping[str, object] | None = None,
    at: str = ".hydra/config.yaml",
    backbone: Backbone = BACKBONE,
    **config: object,
) -> Path:
    """Write an N-vium checkpoint whose YAML lies at a path relative to its folder."""
    write_checkpoint(folder, random_tensors(DecoderSpec(backbone, exits=exits)), **config)
    write_settings(folder / at, NVIUM if settings is None else settings)
    return folder


def write_settings(path: Path, settings: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(settings)))


def changed(settings: Mapping[str, Any], **changes: object) -> dict[str, Any]:
    """A copy of nested settings; `router__hidden_size=9` changes `router: {hidden_size: 9}`."""
    result = copy.deepcopy(dict(settings))
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = result
        for name in sections:
            section = section[name]
        section[key] = value
    return result


def write_raw(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    """Write a safetensors file with any header (text is taken as it is) and announced length."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = header if isinstance(header, str) else json.dumps(header)
    encoded = text.encode()
    announced = len(encoded) if length is None else length
    path.write_bytes(struct.pack("<Q", announced) + encoded + data)
    return path


def entry(
    begin: int, end: int, shape: list[int] | None = None, dtype: str = "F32"
) -> dict[str, Any]:
    """A header entry; the shape defaults to a vector that fills the offsets."""
    return {
        "dtype": dtype,
        "shape": [(end - begin) // 4] if shape is None else shape,
        "data_offsets": [begin, end],
    }


def write_shards(folder: Path, shards: Mapping[str, Arrays], weight_map: object = None) -> Path:
    """Write shard files, and an index that is right unless another one is given."""
    right = {name: shard for shard, tensors in shards.items() for name in tensors}
    index = {"metadata": {}, "weight_map": right if weight_map is None else weight_map}
    write_json(folder / "model.safetensors.index.json", index)
    for shard, tensors in shards.items():
        save_file(tensors, folder / shard)
    return folder
