"""Builds that must fail: each says why, and leaves the bundle as it was."""

import importlib.util
import os
import shutil
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper
from tests.exporter.engine.engine_bundle import TinyDecoder, write_bundle

from quatrain.exporter.bundle import record_file
from quatrain.exporter.engine import build, engines
from quatrain.exporter.engine.callbacks import BuildControl
from quatrain.exporter.engine.engines import build_engines
from quatrain.exporter.engine.network import Network
from quatrain.exporter.engine.profiles import plan_profiles
from quatrain.exporter.engine.store import EngineFile, staged_engines
from quatrain.exporter.engine.tensorrt_adapter import load_tensorrt
from quatrain.exporter.errors import BuildError
from quatrain.exporter.progress import Progress
from quatrain.runtime.errors import BundleError
from quatrain.runtime.manifest import MANIFEST_NAME, dump_manifest, load_manifest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="TensorRT-RTX is not installed"
)


class IgnoredLengths(TinyDecoder):
    """Gives Attention an input that TensorRT's parser ignores."""

    def add_attention(self, inputs: Sequence[str], output: str) -> str:
        if not self.extra_inputs:
            info = helper.make_tensor_value_info("kv_lengths", TensorProto.INT64, ["batch"])
            self.extra_inputs.append(info)
        return self.add_node("Attention", [*inputs, "", "", self.lengths(output)], output)

    def lengths(self, output: str) -> str:
        return "kv_lengths"


class IgnoredSum(IgnoredLengths):
    """As before, but a layer reads the input before it is ignored."""

    def lengths(self, output: str) -> str:
        one = self.ints(f"{output}.one", [1])
        return self.add_node("Add", ["kv_lengths", one], f"{output}.lengths")


class UnsupportedOperator(TinyDecoder):
    def add_layer(self, x: str, layer: int) -> str:
        x = super().add_layer(x, layer)
        self.functions = [
            helper.make_function(
                "quatrain.test",
                "Odd",
                ["x"],
                ["y"],
                [
                    helper.make_node("NonZero", ["x"], ["found"], name="find"),
                    helper.make_node("Shape", ["found"], ["size"], start=0, end=1),
                    helper.make_node("CastLike", ["size", "x"], ["zero"]),
                    helper.make_node("Add", ["x", "zero"], ["y"]),
                ],
                [helper.make_opsetid("", 24)],
            )
        ]
        return self.add_node("Odd", [x], f"{x}.odd", domain="quatrain.test")


class ScatteredCache(TinyDecoder):
    """Updates one cache with an operator that copies it."""

    def update_cache(self, cache: str, update: str) -> None:
        if cache != "value_cache.1":
            super().update_cache(cache, update)
            return
        column = self.add_node("Unsqueeze", ["write_indices", self.ints("axes", [1, 2, 3])], "at")
        shape = self.add_node("Shape", [update], "update_shape")
        index = self.add_node("Expand", [column, shape], f"{cache}.index")
        self.add_node("ScatterElements", [cache, index, update], f"updated_{cache}", axis=2)


def snapshot(bundle: Path) -> dict[str, bytes]:
    return {str(p.relative_to(bundle)): p.read_bytes() for p in bundle.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("plain") / "bundle")


@pytest.fixture
def bundle(plain, tmp_path) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "bundle"))


def fail_to_build(bundle: Path, targets: Sequence[str] = ("a6000",)) -> BuildError:
    """The error of a build that has to fail and leave the bundle alone."""
    before = snapshot(bundle)
    with pytest.raises(BuildError) as error:
        build_engines(bundle, targets)
    assert snapshot(bundle) == before
    assert {path.name for path in bundle.iterdir()} == {Path(name).parts[0] for name in before}
    return error.value


@pytest.mark.parametrize("decoder", [IgnoredLengths, IgnoredSum])
def test_an_ignored_input_is_an_error(tmp_path, decoder):
    error = fail_to_build(write_bundle(tmp_path / "bundle", decoder(num_layers=1)))

    assert "input kv_lengths is unused" in error.found
    reader = "node_layers.0.attention" if decoder is IgnoredLengths else "lengths (Add)"
    assert reader in error.found


def test_an_unsupported_operator_is_named_with_the_function_around_it(tmp_path):
    error = fail_to_build(write_bundle(tmp_path / "bundle", UnsupportedOperator(num_layers=1)))

    assert "node find (NonZero" in error.found
    assert "node_layers.0.x.odd (Odd)" in error.found
    assert "decoder.float16.onnx" in error.asked


def test_a_cache_that_is_copied_is_an_error(tmp_path):
    error = fail_to_build(write_bundle(tmp_path / "bundle", ScatteredCache()))

    assert "value_cache.1" in error.asked
    assert "of 3 KV_CACHE_UPDATE layers" in error.found
    assert "ScatterElements" in error.found


def test_a_graph_that_differs_from_the_manifest_is_an_error(bundle):
    path = bundle / "decoder.float16.onnx"
    model = onnx.load(path, load_external_data=False)
    for info in model.graph.input:
        info.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)
    manifest = load_manifest(bundle)
    files = [record_file(bundle, record.path) for record in manifest.files]
    manifest = msgspec.structs.replace(manifest, files=files)
    (bundle / MANIFEST_NAME).write_bytes(dump_manifest(manifest))

    error = fail_to_build(bundle)

    assert "input_ids" in error.found
    assert "(1, -1)" in error.found


def test_a_build_that_tensorrt_refuses_gives_its_reason(bundle, monkeypatch):
    # float32 attention has no kernel of its own, and here it may not fall apart.
    shutil.rmtree(bundle)
    write_bundle(bundle, TinyDecoder("float32", num_layers=1))
    monkeypatch.setattr(Network, "make_attention_decomposable", lambda self: None)

    error = fail_to_build(bundle)

    assert "not supported by a dedicated kernel" in error.found
    assert "build decoder.float32.onnx for SM 8.6" in error.asked


def test_an_unknown_target(bundle):
    assert "rtx3090" in fail_to_build(bundle, ["a6000", "h100"]).fix


def test_no_target(bundle):
    assert fail_to_build(bundle, []).found == "no target was given"


def test_a_missing_graph(bundle):
    (bundle / "decoder.float16.onnx").unlink()

    assert fail_to_build(bundle).found == "the bundle has no decoder.float16.onnx"


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: os.truncate(path, 1000)])
def test_missing_weights(bundle, spoil):
    spoil(bundle / "weights.bin")

    assert "cut short: weights.bin" in fail_to_build(bundle).found


def test_changed_weights(bundle):
    weights = bytearray((bundle / "weights.bin").read_bytes())
    weights[-1] ^= 1
    (bundle / "weights.bin").write_bytes(weights)

    with pytest.raises(BundleError, match=r"weights\.bin"):
        build_engines(bundle, ["a6000"])


def test_ctrl_c_while_tensorrt_is_imported_is_no_broken_installation(monkeypatch):
    def interrupt(name: str) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr(importlib, "import_module", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load_tensorrt.__wrapped__("tensorrt")


def test_not_a_bundle(tmp_path):
    with pytest.raises(BundleError):
        build_engines(tmp_path, ["a6000"])


def test_too_little_space_is_seen_before_anything_is_built(bundle, monkeypatch):
    usage = shutil.disk_usage(bundle)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))

    error = fail_to_build(bundle, ["a6000", "a100"])

    assert "1,000,000 free" in error.found
    assert "bytes needed" in error.found


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_fills_up_during_the_build(bundle, monkeypatch):
    monkeypatch.setattr(build, "EngineFile", lambda path: EngineFile(Path("/dev/full")))

    error = fail_to_build(bundle)

    assert "too little space on the disk" in error.found
    assert "bytes needed" in error.found


def test_an_interrupt_cancels_the_build(bundle):
    before = snapshot(bundle)
    threads = threading.active_count()

    def interrupt_when_building(line: str) -> None:
        if line.startswith("build") and line.endswith("..."):
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        build_engines(bundle, ["a6000", "a100"], progress=Progress(interrupt_when_building))

    assert snapshot(bundle) == before
    assert {path.name for path in bundle.iterdir()} == set(before)
    # Whether TensorRT was still at it is a matter of milliseconds; the next test cancels for sure.
    assert threading.active_count() == threads


def test_a_cancelled_build_stops_at_once_and_writes_nothing(bundle):
    manifest = load_manifest(bundle)
    network = load_tensorrt("tensorrt-rtx").parse(bundle / "decoder.float16.onnx")
    assert isinstance(network, Network)
    load_tensorrt("tensorrt-rtx").log.clear()
    control = BuildControl()
    control.cancel()
    written: list[bytes] = []

    def write(data: bytes) -> int:
        written.append(data)
        return len(data)

    assert not network.build(plan_profiles(manifest.graphs[0], manifest), "8.6", write, control)
    assert written == []
    assert "BuildCanceled" in " ".join(load_tensorrt("tensorrt-rtx").log.errors)


def test_little_memory_is_warned_of_before_the_build(bundle, monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(engines, "_read_available_memory", lambda: 1000)

    build_engines(bundle, ["a6000"], progress=Progress(lines.append))

    assert lines[0].startswith("warning: the largest graph takes about 0.0 GB of memory")


def test_two_builds_at_a_time_are_refused(bundle):
    with (
        staged_engines(bundle, 0),
        pytest.raises(BuildError, match="another build is at work"),
        staged_engines(bundle, 0),
    ):
        pass


def test_threads_build_one_after_another(tmp_path, monkeypatch):
    """They would take each other's target for their own."""
    active, most = [], []
    run = build.GraphBuild.run

    def watch(self, jobs, staging):
        active.append(self)
        most.append(len(active))
        try:
            return run(self, jobs, staging)
        finally:
            active.remove(self)

    monkeypatch.setattr(build.GraphBuild, "run", watch)
    bundles = [write_bundle(tmp_path / name, TinyDecoder()) for name in ("one", "other")]
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(build_engines, bundles, (["a100"], ["a6000"])))

    assert [engines[0].sm for engines in built] == ["8.0", "8.6"]
    assert most == [1, 1]


def test_what_a_killed_build_left_is_removed(bundle):
    leftover = bundle / ".staging-engines-abc"
    leftover.mkdir()
    (leftover / "half.engine").write_bytes(b"half")

    with staged_engines(bundle, 0) as staging:
        assert not leftover.exists()
        assert staging.is_dir()
    assert not staging.exists()


def test_a_manifest_that_changes_meanwhile_is_not_overwritten(bundle):
    manifest = bundle / "manifest.json"

    def change_it(line: str) -> None:
        if line.startswith("build"):
            manifest.write_bytes(manifest.read_bytes().replace(b'"dense"', b'"nvium"'))

    with pytest.raises(BuildError, match="changed during the build"):
        build_engines(bundle, ["a6000"], progress=Progress(change_it))

    assert load_manifest(bundle).engines == []
    assert not (bundle / "engines").exists()
