"""Weights that lie side by side in the packed file: the same numbers as apart, in every layout."""

import re
from pathlib import Path

import onnx
import pytest
import torch
from tests.exporter.decoder.test_backbones import make_llama, make_qwen2, make_qwen3, randomize

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.decoder.joined_projections import list_projections
from quatrain.exporter.export import export_checkpoint
from quatrain.runtime.manifest import load_manifest

GOLDEN = Path(__file__).parents[2] / "golden"
SIZES = {"hidden_size": 96, "intermediate_size": 160}  # groups of 32
BACKBONES = {
    "llama": lambda: make_llama(tie_word_embeddings=True, **SIZES),
    "llama-biases": lambda: make_llama(attention_bias=True, mlp_bias=True, **SIZES),
    "qwen2": lambda: make_qwen2(**SIZES),
    "qwen3": lambda: make_qwen3(**SIZES),
}


def export_and_verify(checkpoint: Path, bundle: Path, **settings: object) -> None:
    """The gate's reference rounds the checkpoint's weights itself, one by one."""
    export_checkpoint(checkpoint, bundle, quantize="int8", verify=True, **settings)
    verification = load_manifest(bundle).verification
    assert verification is not None and verification.status == "passed"
    assert verification.logits_error < 1e-4


@pytest.mark.parametrize("head_bits", [None, 4])
@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone(name, head_bits, tmp_path):
    torch.manual_seed(3)
    randomize(BACKBONES[name]()).save_pretrained(tmp_path / "checkpoint")

    export_and_verify(tmp_path / "checkpoint", tmp_path / "bundle", head_bits=head_bits)

    stored = onnx.load(tmp_path / "bundle/decoder.cpu.float32.onnx", load_external_data=False)
    names = {tensor.name for tensor in stored.graph.initializer}
    assert "model.layers.0.self_attn.q_proj+k_proj+v_proj.weight.codes" in names
    assert "model.layers.2.self_attn.k_proj+v_proj.weight.codes" in names
    assert "model.layers.2.mlp.gate_proj+up_proj.weight.codes" in names


@pytest.mark.parametrize(
    "name", ["hidden_decoding", "hidden_decoding_mirror", "hidden_decoding_sfa", "nvium"]
)
def test_streams_mirrors_and_segments(name, tmp_path):
    export_and_verify(GOLDEN / name / "checkpoint", tmp_path / "bundle")


def test_keys_of_other_rows_are_not_multiplied_with_the_queries():
    spec = open_checkpoint(GOLDEN / "hidden_decoding_mirror" / "checkpoint").spec

    apart = {
        int(re.findall(r"[0-9]+", names[0])[0])
        for names in list_projections(spec)
        if names[0].endswith("k_proj.weight")
    }

    mirrors = {n for n in range(spec.backbone.num_hidden_layers) if spec.mirror_source(n)}
    assert mirrors and mirrors <= apart
    assert spec.backbone.num_hidden_layers - 1 in apart
