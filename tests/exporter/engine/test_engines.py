"""Builds engines for real, with TensorRT-RTX and no GPU."""

import errno
import hashlib
import shutil
from pathlib import Path

import pytest
from tests.exporter.engine.engine_bundle import TinyDecoder, write_bundle
from tests.exporter.engine.needs import needs_tensorrt

from quatrain.exporter.engine import store
from quatrain.exporter.engine.engines import build_engines
from quatrain.exporter.errors import BuildError
from quatrain.exporter.progress import Progress
from quatrain.runtime.manifest import Engine, Manifest, load_manifest

pytestmark = needs_tensorrt


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, list[Engine], list[str]]:
    """A bundle with engines for all three targets, their entries, and the progress reported."""
    bundle = write_bundle(tmp_path_factory.mktemp("built") / "bundle")
    lines: list[str] = []
    engines = build_engines(bundle, ["a6000", "a100", "rtx3090"], progress=Progress(lines.append))
    return bundle, engines, lines


@pytest.fixture
def bundle(built, tmp_path) -> Path:
    """A copy of that bundle, to change."""
    return Path(shutil.copytree(built[0], tmp_path / "bundle"))


def list_files(bundle: Path) -> set[str]:
    return {str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file()}


def paths_of(manifest: Manifest) -> dict[str, str]:
    return {engine.target: engine.path for engine in manifest.engines}


def test_one_file_for_each_compute_capability(built):
    bundle, engines, _ = built

    assert {engine.target: engine.path for engine in engines} == {
        "a6000": "engines/decoder.tensorrt-rtx-sm86.engine",
        "rtx3090": "engines/decoder.tensorrt-rtx-sm86.engine",
        "a100": "engines/decoder.tensorrt-rtx-sm80.engine",
    }
    assert list_files(bundle / "engines") == {
        "decoder.tensorrt-rtx-sm86.engine",
        "decoder.tensorrt-rtx-sm80.engine",
    }


def test_the_manifest_records_engines_and_files(built):
    bundle, engines, _ = built
    manifest = load_manifest(bundle)

    assert manifest.engines == engines
    records = {record.path: record for record in manifest.files}
    for engine in engines:
        data = (bundle / engine.path).read_bytes()
        assert engine.bytes == records[engine.path].bytes == len(data) > 0
        assert records[engine.path].sha256 == hashlib.sha256(data).hexdigest()
        assert engine.build_seconds > 0
        assert engine.cache_updates == 4  # keys and values of two layers
        assert engine.plugins == {}
        assert [profile.name for profile in engine.profiles] == ["prefill", "decode"]
    assert manifest.versions.tensorrt == f"tensorrt-rtx {engines[0].version}"


def test_only_the_a100_is_marked_as_not_supported(built):
    notes = {engine.target: (engine.vendor_supported, engine.note) for engine in built[1]}

    assert notes["a6000"] == notes["rtx3090"] == (True, None)
    assert notes["a100"][0] is False
    assert "support matrix" in (notes["a100"][1] or "")


def test_progress_tells_parse_and_build(built):
    ended = [line.split(":")[0] for line in built[2] if " s  peak memory" in line or " MB" in line]

    assert ended == ["parse decoder", "build decoder for SM 8.6", "build decoder for SM 8.0"]


def test_nothing_but_engines_and_manifest_is_left(built):
    assert list_files(built[0]) == {
        "decoder.float16.onnx",
        "engines/decoder.tensorrt-rtx-sm80.engine",
        "engines/decoder.tensorrt-rtx-sm86.engine",
        "manifest.json",
        "weights.bin",
    }


def test_rebuilding_one_target_takes_those_along_that_share_its_file(bundle):
    before = load_manifest(bundle)

    build_engines(bundle, ["a6000"])

    after = load_manifest(bundle)
    paths = paths_of(after)
    assert paths["a6000"] == paths["rtx3090"]
    assert paths["a100"] == paths_of(before)["a100"]
    assert len(after.engines) == 3
    assert list_files(bundle / "engines") == {Path(path).name for path in paths.values()}
    assert len({record.path for record in after.files}) == len(after.files) == 4


def test_a_manifest_that_cannot_be_written_leaves_the_old_engines(bundle, monkeypatch):
    before = {name: (bundle / name).read_bytes() for name in list_files(bundle)}

    def fail(path: Path, data: bytes) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(store, "write_file", fail)
    with pytest.raises(BuildError, match="broken disk"):
        build_engines(bundle, ["a6000"])

    assert {name: (bundle / name).read_bytes() for name in list_files(bundle)} == before


def test_float32_graphs_build(tmp_path):
    bundle = write_bundle(tmp_path / "bundle", TinyDecoder("float32", num_layers=1))

    engines = build_engines(bundle, ["a6000"])

    assert [engine.sm for engine in engines] == ["8.6"]


def test_the_log_file_gets_what_tensorrt_says(tmp_path, capfd):
    bundle = write_bundle(tmp_path / "bundle", TinyDecoder(num_layers=1))

    build_engines(bundle, ["rtx3090"], log_file=tmp_path / "log")

    assert "Input filename" in (tmp_path / "log").read_text()
    assert capfd.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "targets"),
    [("float16", ["a100", "a6000"]), ("bfloat16", ["rtx3090"]), ("float32", ["rtx3090"])],
)
def test_every_graph_of_an_exported_checkpoint_builds(tmp_path, dtype, targets):
    pytest.importorskip("onnxscript")
    from quatrain.exporter.export import export_checkpoint

    checkpoint = Path(__file__).parents[2] / "golden" / "nvium" / "checkpoint"
    bundle = tmp_path / "bundle"
    export_checkpoint(
        checkpoint, bundle, dtype=dtype, max_seq_len=64, prefill_chunk=16, self_test=False
    )

    engines = build_engines(bundle, targets)

    names = {graph.name for graph in load_manifest(bundle).graphs}
    assert {(engine.graph, engine.target) for engine in engines} == {
        (name, target) for name in names for target in targets
    }
