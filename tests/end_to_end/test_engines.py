"""Engines for three GPUs, of the trained samples and of decoders as wide as SmolLM2-135M.

With our plugins in them, in processes of their own: plugins stay registered, and TensorRT-RTX's
parser takes none where something else imported `tensorrt_rtx` first.
"""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks._synthetic import SMOLLM2, write_checkpoint
from quatrain.exporter.expansion import expand_checkpoint
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.spec import BankTopK, DecoderSpec, Exits, Router
from quatrain.runtime.manifest import Engine, Manifest, load_manifest

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
    """How often an engine stores kernels of ours, all of them for its GPU."""
    data = (bundle / engine.path).read_bytes()
    sms = re.findall(rb'quatrain-kernels\n.{8}{"sm":"(.*?)"', data, re.DOTALL)
    assert set(sms) <= {engine.sm.encode()}
    assert len(sms) == data.count(b"quatrain-kernels\n")
    return len(sms)


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
        assert count_plugins(manifest, target) == PLUGINS[name]


def build(checkpoint: Path, bundle: Path) -> Manifest:
    """Engines with plugins for all targets, of weights in float16."""
    export_checkpoint(checkpoint, bundle, dtype="float16", self_test=False, verify=False)
    run_quatrain("build", bundle, "--target", *TARGETS, "--plugins", "on")
    manifest = load_manifest(bundle)
    graphs = {graph.name for graph in manifest.graphs}
    built = {(engine.graph, engine.target) for engine in manifest.engines}
    assert built == {(graph, target) for graph in graphs for target in TARGETS}
    for engine in manifest.engines:
        assert count_kernels(bundle, engine) == 4 * sum(engine.plugins.values())
        assert engine.note is None or "support matrix" in engine.note
    return manifest


def count_plugins(manifest: Manifest, target: str) -> Counter[str]:
    plugins: Counter[str] = Counter()
    for engine in manifest.engines:
        if engine.target == target:
            plugins.update(engine.plugins)
    return plugins


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axes", "plugins"),
    [
        (
            {"feed_forward": BankTopK(bank_size=64, top_k=16, predictor_rank=144)},
            {"quatrain::BankTopKFeedForward:1": 3},
        ),
        (
            {"exits": Exits(layers=(1, 2), router=Router(1, 576, 512), adapter_size=64)},
            {"quatrain::ExitRouter:1": 2},
        ),
    ],
    ids=["bank-topk", "nvium"],
)
def test_three_layers_of_smollm2_s_width(
    axes: dict[str, Any], plugins: dict[str, int], tmp_path: Path
):
    backbone = replace(
        SMOLLM2, num_hidden_layers=3, vocab_size=4096, tie_word_embeddings=False
    )  # tables apart, as N-vium's are; their size is none of the kernels' business
    spec = DecoderSpec(backbone, **axes)
    write_checkpoint(spec, tmp_path / "checkpoint", np.random.default_rng(0))

    manifest = build(tmp_path / "checkpoint", tmp_path / "bundle")

    for target in TARGETS:
        assert count_plugins(manifest, target) == plugins
        engines = [engine for engine in manifest.engines if engine.target == target]
        assert sum(engine.cache_updates or 0 for engine in engines) == 6


@pytest.mark.slow
def test_four_layers_of_smollm2_s_width_with_four_streams(tmp_path: Path):
    """Dense weights, expanded; 3 of 4 layers attend within their stream."""
    spec = DecoderSpec(replace(SMOLLM2, num_hidden_layers=4))
    weights = write_checkpoint(spec, tmp_path / "dense", np.random.default_rng(0))
    expand_checkpoint(
        tmp_path / "dense", tmp_path / "checkpoint", num_streams=4, intra_stream="0-2"
    )

    manifest = build(tmp_path / "checkpoint", tmp_path / "bundle")

    engines = {engine.target: engine for engine in manifest.engines}
    assert engines["a6000"].path == engines["rtx3090"].path != engines["a100"].path
    for engine in engines.values():
        assert engine.cache_updates == 8
        assert engine.plugins == {"quatrain::StreamFactorizedAttention:1": 3}
        # All weights are inside, once, with what the kernels and two profiles add: the new tables
        # are copies of the first, and TensorRT keeps equal constants once.
        assert weights < engine.bytes < 1.3 * weights
