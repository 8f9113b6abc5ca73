"""Export as a whole: what a bundle holds, and that a failed one leaves nothing."""

import errno
import os
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    random_tensors,
    write_checkpoint,
    write_dense,
)

from quatrain.exporter import export as export_module
from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.errors import ExportError
from quatrain.exporter.export import export_checkpoint, plan_export
from quatrain.exporter.spec import DecoderSpec, Streams
from quatrain.runtime import LLM
from quatrain.runtime.errors import QuatrainError
from quatrain.runtime.manifest import MANIFEST_NAME, Manifest, load_manifest

GOLDEN = Path(__file__).parents[1] / "golden" / "nvium" / "checkpoint"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of the test's own, so that it may be damaged."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "source" / "checkpoint"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "bundle"
    export_checkpoint(GOLDEN, path)
    return path


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


def test_manifest_describes_the_decoder(bundle: Path):
    manifest = load_manifest(bundle)
    assert manifest.family == "nvium"
    assert [graph.name for graph in manifest.graphs] == [
        "segment_0",
        "segment_1",
        "segment_2",
        "segment_3",
        "head",
    ]
    assert manifest.exits is not None
    assert manifest.exits.layers == [1, 2, 4, 5]
    assert manifest.exits.heads == ["head"] * 4
    assert [layer.graph[-1] for layer in manifest.cache.layers] == ["0", "1", "2", "2", "3"]
    assert manifest.deployment_dtype == manifest.stored_dtype == "bfloat16"
    assert manifest.eos_token_ids == [2]
    assert manifest.self_test is not None
    assert len(manifest.self_test.expected_ids) == 8


def test_every_file_is_recorded_with_its_size(bundle: Path):
    recorded = {record.path: record.bytes for record in load_manifest(bundle).files}
    found = {
        str(path.relative_to(bundle)): path.stat().st_size
        for path in bundle.rglob("*")
        if path.is_file() and path.name != MANIFEST_NAME
    }
    assert recorded == found


def test_weights_stay_in_the_bundle_and_are_never_copied_into_a_graph(bundle: Path):
    names = set()
    for path in bundle.glob("*.onnx"):
        model = onnx.load(path, load_external_data=False)
        for tensor in model.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                entries = {entry.key: entry.value for entry in tensor.external_data}
                assert entries["location"] == "weights/model.safetensors"
                names.add(tensor.name)
            else:
                assert len(tensor.raw_data) <= 4 * 264 * 8, tensor.name
    assert "model.layers.4.mlp.down_proj.weight" in names
    assert "router_heads.2.bias" in names
    assert len(names) == len(open_checkpoint(GOLDEN).tensors)


def test_graphs_pass_the_checker_of_onnx(tmp_path: Path):
    # It refuses external data with more than one hard link, so the weights are copied here.
    export_checkpoint(GOLDEN, tmp_path / "b", weights="copy", self_test=False)
    for path in (tmp_path / "b").glob("*.onnx"):
        onnx.checker.check_model(path, full_check=True)


def test_caches_of_a_cpu_grow_and_those_of_an_engine_do_not(tmp_path: Path):
    report = export_checkpoint(GOLDEN, tmp_path / "b", dtype="float32", self_test=False)
    capacity = report.manifest.cache.capacity
    for graph in report.manifest.graphs:
        assert (graph.path, graph.deployment.path) == (
            f"{graph.name}.cpu.float32.onnx",
            f"{graph.name}.engine.float32.onnx",
        )
        for variant, positions in ((graph, "length"), (graph.deployment, capacity)):
            shapes = [info.shape for info in variant.inputs if "cache" in info.name]
            assert all(shape[2] == positions for shape in shapes)
            assert bool(shapes) == (graph.role == "segment")


def test_copied_weights_carry_their_hash(tmp_path: Path):
    report = export_checkpoint(GOLDEN, tmp_path / "b", weights="copy", self_test=False)
    record = next(r for r in report.manifest.files if r.path.startswith("weights/"))
    assert report.weights == "copy"
    assert record.link is None
    assert record.sha256 is not None


def test_linked_weights_are_hashed_on_request(tmp_path: Path):
    plain = export_checkpoint(GOLDEN, tmp_path / "a", self_test=False)
    hashed = export_checkpoint(GOLDEN, tmp_path / "b", hash_weights=True, self_test=False)
    records = [
        next(r for r in report.manifest.files if r.path.startswith("weights/"))
        for report in (plain, hashed)
    ]
    assert records[0].link == records[1].link != None  # noqa: E711
    assert records[0].sha256 is None
    assert records[1].sha256 is not None


def test_weights_changed_after_the_export_are_noticed(checkpoint: Path, tmp_path: Path):
    export_checkpoint(checkpoint, tmp_path / "b", self_test=False)
    with (checkpoint / "model.safetensors").open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"\x00\x00")
    os.utime(checkpoint / "model.safetensors", ns=(1, 1))
    with pytest.raises(QuatrainError, match=r"model\.safetensors"):
        LLM(tmp_path / "b")


def test_plan_writes_nothing_and_adds_up(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = plan_export(GOLDEN, max_seq_len=100, targets=["a100"])
    assert os.listdir(tmp_path) == []
    assert plan.max_seq_len == 100
    assert plan.prefill_chunk == 100
    assert plan.kv_bytes_per_token == 2 * 5 * 4 * 16 * 2
    assert plan.kv_bytes_at_limit == plan.kv_bytes_per_token * 104 * 4
    assert plan.graphs == ["segment_0", "segment_1", "segment_2", "segment_3", "head"]


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
    export_checkpoint(GOLDEN, tmp_path / "b", embeddings="host", self_test=False)
    manifest = load_manifest(tmp_path / "b")
    assert manifest.embeddings is not None
    assert [table.shape for table in manifest.embeddings.tables] == [[512, 64]]
    first = {info.name for info in manifest.graphs[0].inputs}
    assert "inputs_embeds" in first and "input_ids" not in first
    assert "hidden" in {info.name for info in manifest.graphs[1].inputs}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_seq_len": 257}, "--max-seq-len"),
        ({"max_seq_len": 0}, "--max-seq-len"),
        ({"max_batch": 0}, "--max-batch"),
        ({"prefill_chunk": -1}, "--prefill-chunk"),
        ({"max_deferred": 0}, "--max-deferred"),
        ({"targets": ["h100"]}, "rtx3090"),
        ({"embeddings": "device"}, "graph, host"),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, settings: dict, named: str):
    with pytest.raises(QuatrainError, match=named):
        export_checkpoint(GOLDEN, tmp_path / "b", **settings)
    assert os.listdir(tmp_path) == []


def test_rotary_tables_that_no_onnx_file_holds_are_refused(tmp_path: Path):
    checkpoint = write_dense(tmp_path / "c", max_position_embeddings=10**12)
    fits = plan_export(checkpoint, max_seq_len=125_000_000)
    assert fits.max_seq_len == 125_000_000
    for max_seq_len in (125_000_001, 10**12):
        with pytest.raises(ExportError, match=r"--max-seq-len.*\n.*rotary.*\n.*125000000 or less"):
            export_checkpoint(checkpoint, tmp_path / "b", max_seq_len=max_seq_len)
    assert os.listdir(tmp_path) == ["c"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("settings", [{"weights": "copy", "self_test": False}, {"self_test": True}])
def test_bad_weights_are_named_by_an_export_that_reads_them(
    checkpoint: Path, tmp_path: Path, value: float, settings: dict
):
    tensor = open_checkpoint(checkpoint).tensors["early_norms.1.weight"]
    with (checkpoint / "model.safetensors").open("r+b") as file:
        file.seek(tensor.offset + 6)
        file.write(np.array([value], ml_dtypes.bfloat16).tobytes())
    with pytest.raises(ExportError, match=r"early_norms\.1\.weight"):
        export_checkpoint(checkpoint, tmp_path / "out" / "b", **settings)
    assert os.listdir(tmp_path / "out") == []


STAGES = [
    "export.place_checkpoint",
    "export.refuse_bad_weights",
    "export.write_graphs",
    "export._copy_tokenizer",
    "export.write_file",
    "self_test.make_self_test",
    "verification.verify_export",
    "engine.engines.build_engines",
]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), MemoryError()]
)
def test_a_failure_in_any_stage_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch, stage: str, error: BaseException
):
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    before = (checkpoint / "model.safetensors").read_bytes()
    monkeypatch.setattr(f"quatrain.exporter.{stage}", fail)
    expected = ExportError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        export_checkpoint(checkpoint, tmp_path / "out" / "b", targets=["a6000"], verify=True)
    assert os.listdir(tmp_path / "out") == []
    assert (checkpoint / "model.safetensors").read_bytes() == before


def test_missing_tokenizer_is_a_warning(tmp_path: Path):
    lines: list[str] = []
    progress = export_module.Progress(lines.append)
    report = export_checkpoint(GOLDEN, tmp_path / "b", self_test=False, progress=progress)
    assert report.manifest.tokenizer is None
    assert any("token ids only" in warning for warning in report.warnings)
    assert any(line.startswith("warning: no tokenizer.json") for line in lines)
