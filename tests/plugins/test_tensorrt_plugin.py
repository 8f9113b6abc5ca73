"""The plugin's face towards TensorRT: attributes, fields, and the way through an engine's bytes."""

import numpy as np
import pytest
import torch
from tests.plugins.fake_cuda import STREAM, FakeCuda
from tests.plugins.interpreter import DTYPES
from tests.plugins.twice import TwicePlugin

from quatrain.plugins import plugin_state
from quatrain.plugins.build_target import building_for
from quatrain.plugins.cubin import Cubin, KernelPack, pack_kernels, unpack_kernels
from quatrain.plugins.cuda_launcher import CudaDriver
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


def describe(trt, tensor):
    """As TensorRT tells `enqueue` of a tensor."""
    fact = trt.PluginTensorDesc()
    fact.dims, fact.type = trt.Dims(tuple(tensor.shape)), getattr(trt, DTYPES[tensor.dtype])
    return fact


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_plugin_runs_where_it_is_attached(trt, monkeypatch, dtype):
    variant = TwicePlugin(2.5)._variant(DTYPES[dtype])
    cubin = Cubin(variant, "twice_kernel", 0, 128, b"\x7fELF")
    fake = FakeCuda("8.6", [cubin])
    driver = CudaDriver(fake)
    monkeypatch.setattr(plugin_state, "open_driver", lambda: driver)
    stored = pack_kernels(KernelPack("8.6", ((4, 8),), (cubin,)))
    kernels = np.frombuffer(stored, np.int8)
    attached = create(trt, "RUNTIME", factor=FACTOR, kernels=kernels).attach_to_context(None)
    for rows in (1, 4, 2, 2):
        x = torch.randn(rows, 8).to(dtype)
        y = torch.full_like(x, torch.nan)
        fake.tensors = [x, y]
        fact = describe(trt, x)
        attached.enqueue([fact], [fact], [x.data_ptr()], [y.data_ptr()], 0, STREAM)
        assert torch.equal(y, (x.float() * 2.5).to(dtype))


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
