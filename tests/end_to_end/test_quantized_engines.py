"""Engines over codes: TensorRT keeps them as they are, and does not make whole matrices of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks._synthetic import SMOLLM2, write_checkpoint
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.spec import DecoderSpec
from quatrain.runtime.manifest import load_manifest

pytest.importorskip("tensorrt_rtx", reason="engines without a GPU need TensorRT-RTX")

SAMPLES = Path(__file__).parents[2] / "samples" / "checkpoints"
TARGETS = ["a100", "a6000", "rtx3090"]
MB = 10**6
# Kernels of an engine, and what else is not weights: 9 MB beside 16-bit ones, 15 MB with int4.
OVERHEAD = 17 * MB


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_a_trained_sample_for_all_targets(kind, tmp_path):
    bundle = tmp_path / "bundle"
    export_checkpoint(
        SAMPLES / "topics-dense", bundle, quantize=kind, targets=TARGETS, verify=False
    )

    engines = load_manifest(bundle).engines
    assert [engine.target for engine in engines] == TARGETS
    assert all(engine.cache_updates == 16 for engine in engines)


@pytest.mark.parametrize(
    ("kind", "bits", "max_batch"), [("int4", 4, 1), ("int8", 8, 1), ("int8", 8, 4), (None, 16, 1)]
)
def test_an_engine_holds_its_weights_once_and_codes_as_codes(kind, bits, max_batch, tmp_path):
    """Eight layers of SmolLM2's width have 28 million weights."""
    backbone = replace(SMOLLM2, num_hidden_layers=8, vocab_size=1024, tie_word_embeddings=False)
    checkpoint, bundle = tmp_path / "checkpoint", tmp_path / "bundle"
    write_checkpoint(DecoderSpec(backbone), checkpoint, np.random.default_rng(0))
    options = {"max_seq_len": 256, "max_batch": max_batch, "verify": False, "self_test": False}
    export_checkpoint(checkpoint, bundle, quantize=kind, targets=["rtx3090"], **options)

    width, inner, heads = backbone.hidden_size, backbone.intermediate_size, 9 + 3
    weights = 8 * (2 * width * heads * backbone.head_dim + 3 * width * inner)
    stored = weights * bits // 8 + (0 if kind is None else weights // 32 * 2)
    tables = 2 * 1024 * width * 2
    (engine,) = load_manifest(bundle).engines
    assert stored < engine.bytes < stored + tables + OVERHEAD
