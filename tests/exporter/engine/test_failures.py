"""Builds that must fail: each says why, and leaves the bundle as it was."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
from tests.exporter.engine.failed_build import fail_to_build
from tests.exporter.engine.needs import needs_tensorrt

from quatrain.exporter.engine import build, engines
from quatrain.exporter.engine.engines import build_engines
from quatrain.exporter.engine.store import EngineFile
from quatrain.exporter.engine.tensorrt_adapter import load_tensorrt
from quatrain.exporter.progress import Progress
from quatrain.runtime.errors import BundleError

pytestmark = needs_tensorrt


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


def test_little_memory_is_warned_of_before_the_build(bundle, monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(engines, "_read_available_memory", lambda: 1000)

    build_engines(bundle, ["a6000"], progress=Progress(lines.append))

    assert lines[0].startswith("warning: the largest graph takes about 0.0 GB of memory")
