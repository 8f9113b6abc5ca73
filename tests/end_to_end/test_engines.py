"""Engines for three GPUs, of the trained samples and of decoders of SmolLM2-135M's shape.

With our plugins in them, in processes of their own: plugins stay registered, and TensorRT-RTX's
parser takes none where something else imported `tensorrt_rtx` first.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks._synthetic import SMOLLM2, write_checkpoint
from quatrain.exporter.expansion import expand_checkpoint
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.spec import DecoderSpec
from quatrain.runtime.manifest import Engine, load_manifest

pytest.importorskip("tensorrt_rtx", reason="engines without a GPU need TensorRT-RTX")

SAMPLES = Path(__file__).parents[2] / "samples" / "checkpoints"
TARGETS = ["a100", "a6000", "rtx3090"]


PLUGINS = {
    "topics-nvium": {"quatrain::ExitRouter:1": 3},
    "topics-hidden-decoding": {"quatrain::StreamFactorizedAttention:1": 6},
    "topics-bank-topk": {"quatrain::BankTopKFeedForward:1": 8},
    "topics-hilp": {},
}
"""How many layers of each there are, over the graphs of a bundle."""


def run_quatrain(*words: object) -> None:
    command = [sys.executable, "-m", "quatrain.exporter.cli", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr


def count_kernels(bundle: Path, engine: Engine) -> int:
    """How often an engine stores kernels of ours."""
    return (bundle / engine.path).read_bytes().count(b"quatrain-kernels\n")


@pytest.mark.parametrize("name", PLUGINS)
def test_the_trained_samples(name: str, tmp_path: Path):
    bundle = tmp_path / "bundle"
    flags = ["--drafter"] if name == "topics-hilp" else []
    run_quatrain(
        *("export", SAMPLES / name, "-o", bundle, "--no-self-test", "--no-verify"),
        *("--target", *TARGETS, "--plugins", "on", *flags),
    )
    manifest = load_manifest(bundle)
    graphs = {graph.name for graph in manifest.graphs}
    assert ("drafter" in graphs) == bool(flags)
    built = {(engine.graph, engine.target) for engine in manifest.engines}
    assert built == {(graph, target) for graph in graphs for target in TARGETS}
    for engine in manifest.engines:
        assert (bundle / engine.path).stat().st_size == engine.bytes
        assert engine.vendor_supported == (engine.target != "a100")
        # For each of two profiles, and TensorRT stores a plugin's fields twice.
        assert count_kernels(bundle, engine) == 4 * sum(engine.plugins.values())
    for target in TARGETS:
        engines = [engine for engine in manifest.engines if engine.target == target]
        # A key and a value cache of 8 layers, over all graphs.
        assert sum(engine.cache_updates or 0 for engine in engines) == 16
        plugins: Counter[str] = Counter()
        for engine in engines:
            plugins.update(engine.plugins)
        assert plugins == PLUGINS[name]


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
    run_quatrain("build", tmp_path / "bundle", "--target", *TARGETS, "--plugins", "on")
    engines = {engine.target: engine for engine in load_manifest(tmp_path / "bundle").engines}
    assert set(engines) == set(TARGETS)
    assert engines["a6000"].path == engines["rtx3090"].path != engines["a100"].path
    # The new tables are copies of the first, and TensorRT keeps equal constants once.
    weights = 2 * 134_515_008
    for engine in engines.values():
        assert engine.cache_updates == 60
        assert engine.plugins == {"quatrain::StreamFactorizedAttention:1": 26}
        assert count_kernels(tmp_path / "bundle", engine) == 4 * 26
        assert engine.note is None or "support matrix" in engine.note
        # All weights are inside, once, with what the kernels and two profiles add.
        assert weights < engine.bytes < 1.3 * weights
