"""Checkpoints of any shape: with random weights, or sparse files where only shapes matter."""

import json
import math
import struct
from dataclasses import asdict
from pathlib import Path

import ml_dtypes
import numpy as np
import yaml

from quatrain.exporter.checkpoint.names import expected_tensors
from quatrain.exporter.spec import Backbone, DecoderSpec, Exits

__all__ = ["SMOLLM2", "describe_exits", "write_checkpoint"]

# HuggingFaceTB/SmolLM2-135M-Instruct, config.json
SMOLLM2 = Backbone(
    model_type="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=1e5,
    tie_word_embeddings=True,
)

_SHARD_BYTES = 4 << 30
_ITEM_BYTES = 2


def write_checkpoint(spec: DecoderSpec, folder: Path, rng: np.random.Generator | None) -> int:
    """A sharded bfloat16 checkpoint of `spec`; returns the bytes of its weights.

    Args:
        rng: Draws the weights; None leaves the files sparse, so that they take no room on disk.
    """
    folder.mkdir(parents=True)
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    filled = 0
    for name, shape in expected_tensors(spec).items():
        if filled > _SHARD_BYTES:
            shards.append({})
            filled = 0
        shards[-1][name] = shape
        filled += _num_bytes(shape)
    weight_map: dict[str, str] = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(folder / file, shard, rng)
        weight_map |= dict.fromkeys(shard, file)
    total = sum(_num_bytes(shape) for shard in shards for shape in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = _describe_backbone(spec.backbone)
    if spec.feed_forward is not None:
        config["bank_topk"] = asdict(spec.feed_forward)
    (folder / "config.json").write_text(json.dumps(config))
    if spec.exits is not None:
        (folder / ".hydra").mkdir()
        (folder / ".hydra" / "config.yaml").write_text(yaml.safe_dump(describe_exits(spec.exits)))
    return total


def _write_shard(
    path: Path, tensors: dict[str, tuple[int, ...]], rng: np.random.Generator | None
) -> None:
    header, offset = {}, 0
    for name, shape in tensors.items():
        end = offset + _num_bytes(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        if rng is None:
            file.truncate(8 + len(encoded) + offset)
            return
        for name, shape in tensors.items():
            scale = 0.0 if name.endswith("bias") else 0.02
            values = rng.standard_normal(math.prod(shape), np.float32) * np.float32(scale)
            if "norm" in name:
                values += 1.0
            file.write(values.astype(ml_dtypes.bfloat16).tobytes())


def _num_bytes(shape: tuple[int, ...]) -> int:
    return math.prod(shape) * _ITEM_BYTES


def _describe_backbone(backbone: Backbone) -> dict[str, object]:
    fields = (
        "model_type",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "rope_theta",
        "rms_norm_eps",
        "tie_word_embeddings",
    )
    return {name: getattr(backbone, name) for name in fields} | {"eos_token_id": 2}


def describe_exits(exits: Exits) -> dict[str, object]:
    """The depth axis as the settings of its authors' code have it."""
    router = exits.router
    return {
        "early_layer_idx": list(exits.layers),
        "router": {
            "router_type": "simple_mlp",
            "router_temp": router.temperature,
            "hidden_size": router.hidden_size,
            "intermediate_size": router.intermediate_size,
            "num_layers": router.num_layers,
        },
        "early_adapter": {"enabled": exits.adapter_size is not None, "dim": exits.adapter_size},
        "final_adapter": {
            "enabled": exits.final_adapter_size is not None,
            "dim": exits.final_adapter_size,
        },
        "tying": {
            "tie_final_to_embeddings": False,
            "tie_early_to_final": exits.early_head == "lm_head",
            "tie_early_to_embeddings": exits.early_head == "embeddings",
        },
    }
