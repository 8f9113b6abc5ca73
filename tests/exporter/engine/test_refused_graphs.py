"""Graphs that TensorRT refuses, or does not take as they are: each build says why."""

import shutil
from collections.abc import Sequence

import msgspec
import onnx
import pytest
from onnx import TensorProto, helper
from tests.exporter.engine.engine_bundle import TinyDecoder, write_bundle
from tests.exporter.engine.failed_build import fail_to_build
from tests.exporter.engine.needs import needs_tensorrt

from quatrain.exporter.bundle import record_file
from quatrain.exporter.engine.network import Network
from quatrain.runtime.manifest import MANIFEST_NAME, dump_manifest, load_manifest

pytestmark = needs_tensorrt


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
