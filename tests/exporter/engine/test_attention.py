"""Attention without a fused kernel is built from single operations, and the manifest says so."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from quatrain.exporter.engine.engines import build_engines
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.progress import Progress
from quatrain.runtime.manifest import load_manifest


@pytest.mark.parametrize(
    ("num_heads", "dtype", "is_fused"),
    [(4, "float16", True), (3, "float16", False), (2, "bfloat16", False), (4, "float32", False)],
)
def test_engines_for_any_number_of_heads(tmp_path, num_heads: int, dtype: str, is_fused: bool):
    pytest.importorskip("tensorrt_rtx", reason="engines need TensorRT-RTX")
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
    LlamaForCausalLM(config).save_pretrained(tmp_path / "checkpoint")
    export_checkpoint(tmp_path / "checkpoint", tmp_path / "bundle", dtype=dtype, self_test=False)
    lines: list[str] = []

    build_engines(tmp_path / "bundle", ["rtx3090"], progress=Progress(lines.append))

    [engine] = load_manifest(tmp_path / "bundle").engines
    assert engine.bytes > 0
    assert (engine.note is None) == is_fused
    assert any("no fused attention" in line for line in lines) != is_fused
