"""Networks of decoders whose tokens are several rows, with embeddings in the graph and outside."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from tests.exporter.checkpoint.folders import BACKBONE, random_tensors, write_checkpoint

from quatrain.exporter.engine.check import check_network
from quatrain.exporter.engine.network import Network
from quatrain.exporter.engine.onnx_graph import OnnxGraph
from quatrain.exporter.engine.profiles import plan_profiles
from quatrain.exporter.engine.tensorrt_adapter import load_tensorrt
from quatrain.exporter.errors import BuildError
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.spec import DecoderSpec, Streams
from quatrain.runtime.manifest import Manifest, load_manifest

pytest.importorskip("tensorrt_rtx", reason="networks need TensorRT-RTX")

SPEC = DecoderSpec(replace(BACKBONE, head_dim=16), streams=Streams(3))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Layers that attend within their stream, across with a window, and within again."""
    return write_checkpoint(
        tmp_path_factory.mktemp("streams") / "checkpoint",
        random_tensors(SPEC),
        head_dim=16,
        scale_seq_times=2,
        scale_seq_attn_per_suffix_layerwise=[True, False, True],
        sliding_window_size_layerwise=[-1, 8, -1],
    )


def export(
    checkpoint: Path, bundle: Path, embeddings: Literal["graph", "host"]
) -> tuple[Manifest, Network]:
    """The manifest, and the network that TensorRT makes of the only graph."""
    export_checkpoint(
        checkpoint, bundle, dtype="float16", embeddings=embeddings, self_test=False, max_seq_len=32
    )
    manifest = load_manifest(bundle)
    network = load_tensorrt("tensorrt-rtx").parse(bundle / manifest.graphs[0].deployment.path)
    assert isinstance(network, Network), network
    return manifest, network


def check(bundle: Path, manifest: Manifest, network: Network) -> None:
    graph = manifest.graphs[0]
    onnx_graph = OnnxGraph(bundle / graph.deployment.path)
    check_network(network, load_tensorrt("tensorrt-rtx"), graph, manifest, onnx_graph)


@pytest.mark.parametrize("embeddings", ["graph", "host"])
def test_the_network_is_the_graph(
    checkpoint: Path, tmp_path: Path, embeddings: Literal["graph", "host"]
):
    manifest, network = export(checkpoint, tmp_path / "b", embeddings)

    check(tmp_path / "b", manifest, network)
    assert len(network.cache_updates) == 2 * 3
    first = {"graph": ("input_ids", (-1, -1)), "host": ("inputs_embeds", (-1, -1, 48))}
    found = network.inputs[0]
    assert (found.name, found.shape) == first[embeddings]
    shapes = {tensor.name: tensor.shape for tensor in network.inputs}
    assert shapes["key_cache.0"] == (-1, 3 * 2, 40, 16)
    assert shapes["key_cache.1"] == (-1, 2, 3 * 40, 16)
    assert shapes["key_cache.2"] == (-1, 2, 40, 16)
    profiles = plan_profiles(manifest.graphs[0], manifest)
    assert [set(profile.shapes) == set(shapes) for profile in profiles] == [True, True]


def test_a_manifest_with_other_tables_is_noticed(checkpoint: Path, tmp_path: Path):
    manifest, network = export(checkpoint, tmp_path / "b", "host")
    graph = manifest.graphs[0]
    first, *others = graph.deployment.inputs
    assert first.name == "inputs_embeds"
    wider = msgspec.structs.replace(first, shape=["batch", "rows", 64])
    variant = msgspec.structs.replace(graph.deployment, inputs=[wider, *others])
    changed = msgspec.structs.replace(
        manifest, graphs=[msgspec.structs.replace(graph, deployment=variant)]
    )

    with pytest.raises(BuildError, match="inputs_embeds"):
        check(tmp_path / "b", changed, network)
