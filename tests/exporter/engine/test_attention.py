"""Attention without a fused kernel is built from single operations, and the manifest says so."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from quatrain.exporter.engine.build import GraphBuild
from quatrain.exporter.engine.engines import build_engines
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.progress import Progress
from quatrain.runtime.manifest import Engine, load_manifest

pytest.importorskip("tensorrt_rtx", reason="engines need TensorRT-RTX")


def build_decoder(folder: Path, num_heads: int, dtype: str) -> tuple[Engine, list[str]]:
    """The engine of a one-layer decoder, and what the build said."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16 * num_heads,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder / "checkpoint")
    export_checkpoint(folder / "checkpoint", folder / "bundle", dtype=dtype, self_test=False)
    lines: list[str] = []
    build_engines(folder / "bundle", ["rtx3090"], progress=Progress(lines.append))
    [engine] = load_manifest(folder / "bundle").engines
    return engine, lines


@pytest.mark.parametrize(
    ("num_heads", "dtype", "is_fused"),
    [(4, "float16", True), (3, "float16", False), (2, "bfloat16", False), (4, "float32", False)],
)
def test_engines_for_any_number_of_heads(tmp_path, num_heads: int, dtype: str, is_fused: bool):
    engine, lines = build_decoder(tmp_path, num_heads, dtype)

    assert engine.bytes > 0
    assert (engine.note is None) == is_fused
    assert any("no fused attention" in line for line in lines) != is_fused


def test_a_case_nobody_knew_of_is_built_again(tmp_path, monkeypatch):
    monkeypatch.setattr(GraphBuild, "_is_known_to_lack_attention", lambda self: False)

    engine, lines = build_decoder(tmp_path, 3, "float16")

    assert engine.note is not None
    assert any("building again" in line for line in lines)
