"""Builds that are interrupted or meet another: no half of an engine, and none of the other."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.exporter.engine.engine_bundle import TinyDecoder, write_bundle
from tests.exporter.engine.failed_build import snapshot
from tests.exporter.engine.needs import needs_tensorrt

from quatrain.exporter.engine import build
from quatrain.exporter.engine.callbacks import BuildControl
from quatrain.exporter.engine.engines import build_engines
from quatrain.exporter.engine.network import Network
from quatrain.exporter.engine.profiles import plan_profiles
from quatrain.exporter.engine.store import staged_engines
from quatrain.exporter.engine.tensorrt_adapter import load_tensorrt
from quatrain.exporter.errors import BuildError
from quatrain.exporter.progress import Progress
from quatrain.runtime.manifest import load_manifest

pytestmark = needs_tensorrt


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
