"""Checkpoints to expand, and what is read of the results."""

import hashlib
import os
from pathlib import Path

from tests.exporter.checkpoint.folders import (
    BACKBONE,
    LLAMA,
    Arrays,
    random_tensors,
    write_checkpoint,
)

from quatrain.exporter import open_checkpoint
from quatrain.exporter.checkpoint.names import stream_table_name
from quatrain.exporter.spec import Backbone, DecoderSpec, Streams

INDEX = "model.safetensors.index.json"
QWEN3 = {
    **LLAMA,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 4,
    "layer_types": ["full_attention"] * 3,
}


def qwen3_spec(tied: bool = False) -> DecoderSpec:
    return DecoderSpec(
        Backbone("qwen3", 48, 16, 24, 3, 4, 2, 4, 64, tie_word_embeddings=tied, qk_norm=True)
    )


def write_qwen3(folder: Path, tied: bool, **changes: object) -> Path:
    tensors = random_tensors(qwen3_spec(tied))
    return write_checkpoint(folder, tensors, QWEN3, tie_word_embeddings=tied, **changes)


def read_table(folder: Path, stream: int) -> bytes:
    return b"".join(
        bytes(chunk)
        for chunk in open_checkpoint(folder).tensors[stream_table_name(stream)].chunks()
    )


def fingerprint(folder: Path) -> dict[str, tuple[int, str]]:
    """Time and hash of every file in a folder."""
    return {
        str(file.relative_to(folder)): (
            file.stat().st_mtime_ns,
            hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        for file in folder.rglob("*")
        if file.is_file()
    }


def write_streams(folder: Path, tensors: Arrays | None = None, **changes: object) -> Path:
    """A checkpoint of two streams whose tables differ."""
    spec = DecoderSpec(BACKBONE, streams=Streams(2))
    return write_checkpoint(folder, tensors or random_tensors(spec), scale_seq_times=1, **changes)


def expect_nothing(folder: Path, names: set[str]) -> None:
    assert set(os.listdir(folder)) == names
