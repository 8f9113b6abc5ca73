"""Export as a whole: what a plan says, what a bundle holds, and where its weights are."""

import os
from pathlib import Path

import onnx
import pytest
from tests.exporter.checkpoint.folders import GOLDEN_NVIUM

from quatrain.exporter import export as export_module
from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.export import export_checkpoint, plan_export
from quatrain.runtime.manifest import MANIFEST_NAME, load_manifest


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "bundle"
    export_checkpoint(GOLDEN_NVIUM, path)
    return path


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
    assert len(names) == len(open_checkpoint(GOLDEN_NVIUM).tensors)


def test_graphs_pass_the_checker_of_onnx(tmp_path: Path):
    # It refuses external data with more than one hard link, so the weights are copied here.
    export_checkpoint(GOLDEN_NVIUM, tmp_path / "b", weights="copy", self_test=False)
    for path in (tmp_path / "b").glob("*.onnx"):
        onnx.checker.check_model(path, full_check=True)


def test_caches_of_a_cpu_grow_and_those_of_an_engine_do_not(tmp_path: Path):
    report = export_checkpoint(GOLDEN_NVIUM, tmp_path / "b", dtype="float32", self_test=False)
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
    report = export_checkpoint(GOLDEN_NVIUM, tmp_path / "b", weights="copy", self_test=False)
    record = next(r for r in report.manifest.files if r.path.startswith("weights/"))
    assert report.weights == "copy"
    assert record.link is None
    assert record.sha256 is not None


def test_linked_weights_are_hashed_on_request(tmp_path: Path):
    plain = export_checkpoint(GOLDEN_NVIUM, tmp_path / "a", self_test=False)
    hashed = export_checkpoint(GOLDEN_NVIUM, tmp_path / "b", hash_weights=True, self_test=False)
    records = [
        next(r for r in report.manifest.files if r.path.startswith("weights/"))
        for report in (plain, hashed)
    ]
    assert records[0].link == records[1].link != None  # noqa: E711
    assert records[0].sha256 is None
    assert records[1].sha256 is not None


def test_plan_writes_nothing_and_adds_up(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = plan_export(GOLDEN_NVIUM, max_seq_len=100, targets=["a100"])
    assert os.listdir(tmp_path) == []
    assert plan.max_seq_len == 100
    assert plan.prefill_chunk == 100
    assert plan.kv_bytes_per_token == 2 * 5 * 4 * 16 * 2
    assert plan.kv_bytes_at_limit == plan.kv_bytes_per_token * 104 * 4
    assert plan.graphs == ["segment_0", "segment_1", "segment_2", "segment_3", "head"]


def test_missing_tokenizer_is_a_warning(tmp_path: Path):
    lines: list[str] = []
    progress = export_module.Progress(lines.append)
    report = export_checkpoint(GOLDEN_NVIUM, tmp_path / "b", self_test=False, progress=progress)
    assert report.manifest.tokenizer is None
    assert any("token ids only" in warning for warning in report.warnings)
    assert any(line.startswith("warning: no tokenizer.json") for line in lines)
