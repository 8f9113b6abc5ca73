"""Export of streams: their caches, and embeddings on the host, of other families, too."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    GOLDEN_NVIUM,
    random_tensors,
    write_checkpoint,
)

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.export import export_checkpoint, plan_export
from quatrain.exporter.spec import DecoderSpec, Streams
from quatrain.runtime.manifest import Manifest, load_manifest


@pytest.fixture(scope="module")
def streams_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three streams; layers that attend within them, across them, and within them again."""
    spec = DecoderSpec(BACKBONE, streams=Streams(3))
    return write_checkpoint(
        tmp_path_factory.mktemp("streams") / "checkpoint",
        random_tensors(spec),
        scale_seq_times=2,
        scale_seq_attn_per_suffix_layerwise=[True, False, True],
        sliding_window_size_layerwise=[-1, 8, -1],
    )


@pytest.fixture(scope="module")
def streams_manifests(
    streams_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Manifest]:
    """Its manifests, by the place of the embeddings; `host` is that of a bundle `host`."""
    folder = tmp_path_factory.mktemp("streams-bundles")
    return {
        place: export_checkpoint(
            streams_checkpoint, folder / place, embeddings=place, self_test=False
        ).manifest
        for place in ("graph", "host")
    }


def test_the_plan_has_both_bills(streams_checkpoint: Path):
    plan = plan_export(streams_checkpoint, dtype="float16", embeddings="host")
    table = 48 * 16 * 2
    graph, host = plan.weights
    assert (graph.engine_bytes, graph.host_bytes) == (plan.weight_bytes, 0)
    assert (host.engine_bytes, host.host_bytes) == (plan.weight_bytes - 3 * table, 3 * table)
    assert plan.embeddings == "host" and plan.cpu_weight_bytes == host.cpu_bytes
    layer_row = 2 * 2 * 4 * 2  # keys and values, heads, head_dim, bytes
    assert plan.cache.bytes_per_row == 3 * layer_row
    # Rows of all streams, but in the last layer those of the last stream only.
    assert plan.kv_bytes_per_token == (3 + 3 + 1) * layer_row
    assert plan.cache.num_one_row_layers == 1


def test_caches_of_streams_are_described_layer_by_layer(streams_manifests: dict[str, Manifest]):
    for manifest in streams_manifests.values():
        cache = manifest.cache
        assert (manifest.family, cache.rows_per_token) == ("hidden_decoding", 3)
        assert [(c.num_heads, c.unit, c.window) for c in cache.layers] == [
            (6, "tokens", None),
            (2, "rows", 8),
            (2, "tokens", None),
        ]
        # Where there are as many positions and heads as the graph's own inputs have.
        graph = manifest.graphs[0]
        for variant, is_static in ((graph, False), (graph.deployment, True)):
            shapes = {info.name: info.shape for info in variant.inputs}
            for layer in cache.layers:
                grows_by = "row_length" if layer.unit == "rows" else "length"
                positions = cache.positions(layer) if is_static else grows_by
                shape = ["batch", layer.num_heads, positions, layer.head_dim]
                assert shapes[f"key_cache.{layer.layer}"] == shape
                assert shapes[f"value_cache.{layer.layer}"] == shape


def test_embeddings_on_the_host_are_listed_in_the_order_of_streams(
    streams_checkpoint: Path, tmp_path: Path
):
    bundle = tmp_path / "b"
    export_checkpoint(streams_checkpoint, bundle, embeddings="host", self_test=False)
    embeddings = load_manifest(bundle).embeddings
    assert embeddings is not None and len(embeddings.tables) == 3
    tensors = open_checkpoint(streams_checkpoint).tensors
    names = ["model.embed_tokens.weight"]
    names += [f"model.scale_seq_embed_tokens_list.{s}.weight" for s in range(2)]
    for table, name in zip(embeddings.tables, names, strict=True):
        assert (table.dtype, table.shape) == ("bfloat16", [48, 16])
        stored = np.fromfile(bundle / table.path, np.uint16, 48 * 16, offset=table.offset)
        assert (stored == tensors[name].read().view(np.uint16).ravel()).all()


def test_embeddings_on_the_host_are_in_no_graph(streams_manifests: dict[str, Manifest]):
    inputs = {
        place: {info.name: info for info in manifest.graphs[0].deployment.inputs}
        for place, manifest in streams_manifests.items()
    }
    assert streams_manifests["graph"].embeddings is None
    assert "input_ids" in inputs["graph"] and "inputs_embeds" not in inputs["graph"]
    assert "input_ids" not in inputs["host"]
    info = inputs["host"]["inputs_embeds"]
    assert (info.dtype, info.shape) == ("float32", ["batch", "rows", 3 * 16])


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_dense_table_on_the_host_stays_in_the_graph_only_as_the_head(
    tmp_path: Path, is_tied: bool
):
    tensors = random_tensors(DecoderSpec(BACKBONE))
    if is_tied:
        del tensors["lm_head.weight"]
    source = write_checkpoint(tmp_path / "c", tensors, tie_word_embeddings=is_tied)
    export_checkpoint(source, tmp_path / "b", embeddings="host", self_test=False)
    for path in (tmp_path / "b").glob("*.onnx"):
        graph = onnx.load(path, load_external_data=False).graph
        names = {tensor.name for tensor in graph.initializer}
        assert ("model.embed_tokens.weight" in names) is is_tied
        assert "model.norm.weight" in names


def test_embeddings_on_the_host_with_exits(tmp_path: Path):
    export_checkpoint(GOLDEN_NVIUM, tmp_path / "b", embeddings="host", self_test=False)
    manifest = load_manifest(tmp_path / "b")
    assert manifest.embeddings is not None
    assert [table.shape for table in manifest.embeddings.tables] == [[512, 64]]
    first = {info.name for info in manifest.graphs[0].inputs}
    assert "inputs_embeds" in first and "input_ids" not in first
    assert "hidden" in {info.name for info in manifest.graphs[1].inputs}
