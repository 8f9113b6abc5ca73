"""Registering our plugins with TensorRT: once, and not over somebody else's."""

import pytest
from tests.plugins.twice import TwicePlugin

from quatrain.plugins import registry
from quatrain.plugins.registry import deregister, describe_registered, register

pytest.importorskip("tensorrt_rtx", reason="plugins need TensorRT")
TWICE = "quatrain::Twice:1"


@pytest.fixture
def trt():
    """TensorRT-RTX with none of our plugins, before and after."""
    from quatrain.exporter.engine.tensorrt_adapter import load_tensorrt

    module = load_tensorrt("tensorrt-rtx")._trt
    deregister(module)
    yield module
    deregister(module)


def test_plugins_are_registered_once_and_can_go(trt):
    register(trt, [TwicePlugin])
    register(trt, [TwicePlugin])
    assert describe_registered(trt).count(TWICE) == 1

    deregister(trt)
    assert TWICE not in describe_registered(trt)


def test_all_operators_are_registered_by_default(trt):
    register(trt)
    names = {f"quatrain::{name}:1" for name in registry.DEFINITIONS}
    assert names <= set(describe_registered(trt))


def test_somebody_else_s_plugin_is_not_replaced(trt, monkeypatch: pytest.MonkeyPatch):
    register(trt, [TwicePlugin])
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_creators", {})
        with pytest.raises(RuntimeError, match=f"another plugin is registered as {TWICE}"):
            register(trt, [TwicePlugin])
