"""A bundle made to reach outside itself is refused, even when its hashes have been made to fit."""

import hashlib
import json
import shutil
from pathlib import Path

import onnx
import pytest

from quatrain.exporter.engine.engines import build_engines
from quatrain.runtime import LLM
from quatrain.runtime.errors import QuatrainError


@pytest.fixture
def bundle(nvium_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(nvium_bundle, tmp_path / "inside" / "bundle"))


def redirect_weights(bundle: Path, graph: str, location: str) -> None:
    """Point a graph's weights elsewhere, and make the manifest agree with the new graph."""
    path = bundle / graph
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    path.write_bytes(model.SerializeToString())
    manifest = json.loads((bundle / "manifest.json").read_text())
    [record] = [record for record in manifest["files"] if record["path"] == graph]
    record["bytes"] = path.stat().st_size
    record["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (bundle / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("kind", ["relative", "absolute"])
def test_weights_outside_the_bundle_are_not_loaded(bundle: Path, kind: str):
    outside = bundle.parent / "model.safetensors"
    shutil.copyfile(bundle / "weights" / "model.safetensors", outside)
    location = "../model.safetensors" if kind == "relative" else str(outside)
    redirect_weights(bundle, "segment_1.cpu.float32.onnx", location)
    with pytest.raises(QuatrainError, match="segment_1"):
        LLM(bundle, backend="onnxruntime")


@pytest.mark.parametrize("kind", ["relative", "absolute"])
def test_engines_are_not_built_from_weights_outside(bundle: Path, kind: str):
    outside = bundle.parent / "model.safetensors"
    shutil.copyfile(bundle / "weights" / "model.safetensors", outside)
    location = "../model.safetensors" if kind == "relative" else str(outside)
    redirect_weights(bundle, "segment_1.engine.bfloat16.onnx", location)
    before = sorted(path.name for path in bundle.rglob("*"))
    with pytest.raises(QuatrainError, match=r"model\.safetensors|segment_1"):
        build_engines(bundle, ["a6000"])
    assert sorted(path.name for path in bundle.rglob("*")) == before


def test_a_link_that_leads_outside_is_not_followed(bundle: Path):
    weights = bundle / "weights" / "model.safetensors"
    outside = bundle.parent / "model.safetensors"
    shutil.move(weights, outside)
    weights.symlink_to(outside)
    with pytest.raises(QuatrainError, match=r"model\.safetensors"):
        LLM(bundle, backend="onnxruntime")
