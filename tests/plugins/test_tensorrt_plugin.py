"""The plugin's face towards TensorRT: attributes, fields, and the way through an engine's bytes."""

import numpy as np
import pytest
from tests.plugins.twice import TwicePlugin

from quatrain.plugins.build_target import building_for
from quatrain.plugins.cubin import unpack_kernels
from quatrain.plugins.definition import TensorFacts
from quatrain.plugins.problems import take_problems
from quatrain.plugins.tensorrt_plugin import make_creator

pytest.importorskip("tensorrt_rtx", reason="plugins need TensorRT")


@pytest.fixture(scope="module")
def trt():
    """TensorRT-RTX, with its parser."""
    from quatrain.exporter.engine.tensorrt_adapter import load_tensorrt

    return load_tensorrt("tensorrt-rtx")._trt


def create(trt, phase, **values):
    """A plugin from fields as the parser hands them over."""
    take_problems()
    types = {np.dtype(np.float32): "FLOAT32", np.dtype(np.int32): "INT32", np.dtype("i1"): "INT8"}
    fields = [
        trt.PluginField(name, array, getattr(trt.PluginFieldType, types[array.dtype]))
        for name, array in values.items()
    ]
    creator = make_creator(trt, TwicePlugin)
    phase = getattr(trt.TensorRTPhase, phase)
    return creator.create_plugin("node", trt.PluginFieldCollection(fields), phase)


FACTOR = np.array([2.5], np.float32)


def test_attributes_are_read_and_defaults_filled_in(trt):
    assert create(trt, "BUILD", factor=FACTOR).state.definition == TwicePlugin(2.5, 0)
    scratch = np.array([1], np.int32)
    plugin = create(trt, "BUILD", factor=FACTOR, scratch=scratch)
    assert plugin.state.definition == TwicePlugin(2.5, 1)
    assert (plugin.plugin_name, plugin.plugin_version) == ("Twice", "1")
    assert plugin.plugin_namespace == "quatrain"


def test_a_missing_attribute_is_noted(trt):
    assert create(trt, "BUILD") is None
    assert [str(p) for p in take_problems()] == ["Twice: the attribute factor is missing (at node)"]


def test_an_attribute_without_meaning_is_noted(trt):
    assert create(trt, "BUILD", factor=np.zeros(1, np.float32)) is None
    assert [str(p) for p in take_problems()] == ["Twice: factor is 0 (at node)"]


def test_a_stored_plugin_without_kernels_is_noted(trt):
    assert create(trt, "RUNTIME", factor=FACTOR) is None
    assert "the engine has no kernels for it" in str(take_problems()[0])


def test_a_stored_plugin_comes_back(trt):
    plugin = create(trt, "BUILD", factor=FACTOR)
    plugin.state.configure([TensorFacts("float32", (-1, 8), (4, 8))])
    clone = plugin.clone()  # owns what the fields point to
    with building_for("8.6"):
        fields = clone.get_fields_to_serialize()
    arrays = {field.name: np.array(field.data) for field in fields}
    stored = create(trt, "RUNTIME", **arrays)

    assert stored.state.definition == TwicePlugin(2.5, 0)
    pack = unpack_kernels(stored.state.get_stored())
    assert (pack.sm, pack.max_shapes) == ("8.6", ((4, 8),))
    assert [cubin.variant for cubin in pack.cubins] == [TwicePlugin(2.5)._variant("float32")]


def test_errors_while_building_are_noted_not_raised(trt):
    plugin = create(trt, "BUILD", factor=FACTOR)
    plugin.configure_plugin([], [])
    plugin.get_fields_to_serialize()

    assert [problem.operator for problem in take_problems()] == ["Twice", "Twice"]


@pytest.mark.parametrize(
    ("dtype", "shape", "words"),
    [("int64", (-1, 8), "x is int64; the kernel takes"), ("float32", (-1, -1), "are dynamic")],
)
def test_what_there_is_no_kernel_for_is_said_before_a_build(trt, dtype, shape, words):
    plugin = create(trt, "BUILD", factor=FACTOR)

    assert words in plugin.find_refusal([(getattr(trt, dtype), shape)], 4)
    assert plugin.find_refusal([(trt.float16, (-1, 8))], 4) is None
