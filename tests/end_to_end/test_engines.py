"""Engines for three GPUs, of the trained samples and of a decoder of SmolLM2-135M's shape."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks._synthetic import SMOLLM2, write_checkpoint
from quatrain.exporter.engine.engines import build_engines
from quatrain.exporter.expansion import expand_checkpoint
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.spec import DecoderSpec
from quatrain.runtime.manifest import load_manifest

pytest.importorskip("tensorrt_rtx", reason="engines without a GPU need TensorRT-RTX")

SAMPLES = Path(__file__).parents[2] / "samples" / "checkpoints"
TARGETS = ["a100", "a6000", "rtx3090"]


@pytest.mark.parametrize(
    "name", ["topics-nvium", "topics-hidden-decoding", "topics-bank-topk", "topics-hilp"]
)
def test_the_trained_samples(name: str, tmp_path: Path):
    drafts = name == "topics-hilp"
    report = export_checkpoint(SAMPLES / name, tmp_path / "bundle", targets=TARGETS, drafter=drafts)
    graphs = {graph.name for graph in report.manifest.graphs}
    assert ("drafter" in graphs) == drafts
    built = {(engine.graph, engine.target) for engine in report.manifest.engines}
    assert built == {(graph, target) for graph in graphs for target in TARGETS}
    for engine in report.manifest.engines:
        assert (tmp_path / "bundle" / engine.path).stat().st_size == engine.bytes
        assert engine.vendor_supported == (engine.target != "a100")
    for target in TARGETS:  # a key and a value cache of 8 layers, over all graphs
        updates = [e.cache_updates for e in report.manifest.engines if e.target == target]
        assert sum(filter(None, updates)) == 16


@pytest.mark.slow
def test_a_135m_decoder_with_four_streams(tmp_path: Path):
    """Dense weights, expanded; 26 of 30 layers attend within their stream."""
    write_checkpoint(DecoderSpec(SMOLLM2), tmp_path / "dense", np.random.default_rng(0))
    expand_checkpoint(
        tmp_path / "dense",
        tmp_path / "checkpoint",
        num_streams=4,
        intra_stream="0-6,8-14,16-22,24-28",
    )
    export_checkpoint(
        tmp_path / "checkpoint", tmp_path / "bundle", dtype="float16", self_test=False
    )
    build_engines(tmp_path / "bundle", TARGETS)
    engines = {engine.target: engine for engine in load_manifest(tmp_path / "bundle").engines}
    assert set(engines) == set(TARGETS)
    assert engines["a6000"].path == engines["rtx3090"].path != engines["a100"].path
    # The new tables are copies of the first, and TensorRT keeps equal constants once.
    weights = 2 * 134_515_008
    for engine in engines.values():
        assert engine.cache_updates == 60
        assert engine.note is None or "support matrix" in engine.note
        # All weights are inside, once, with what the kernels and two profiles add.
        assert weights < engine.bytes < 1.3 * weights
