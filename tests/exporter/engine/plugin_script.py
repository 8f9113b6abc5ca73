"""Run by test_engine_plugins.py in a process of its own: builds a bundle with plugins in it.

Plugins stay registered for as long as the process lives, and a parser that finds no library for
them aborts it.

    python plugin_script.py FOLDER REGISTERED_VERSION [import-first | register-late]
"""

import json
import sys
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

if "import-first" in sys.argv:
    import tensorrt_rtx  # noqa: F401

from tests.exporter.engine.engine_bundle import TinyDecoder, write_bundle

from quatrain.exporter.engine.check import check_network
from quatrain.exporter.engine.engines import build_engines
from quatrain.exporter.engine.network import Network
from quatrain.exporter.engine.onnx_graph import OnnxGraph
from quatrain.exporter.engine.tensorrt_adapter import load_tensorrt
from quatrain.exporter.errors import BuildError
from quatrain.runtime.manifest import load_manifest

NAMESPACE = "quatrain_test"
OPERATOR = "Twice"


class PluginDecoder(TinyDecoder):
    """Ends each layer with an operator of its own, of which it asks version 1 as a plugin."""

    def make_model(self) -> onnx.ModelProto:
        body = [helper.make_node("Add", ["x", "x"], ["y"])]
        opsets = [helper.make_opsetid("", 24)]
        self.functions = [helper.make_function(NAMESPACE, OPERATOR, ["x"], ["y"], body, opsets)]
        return super().make_model()

    def add_layer(self, x: str, layer: int) -> str:
        x = super().add_layer(x, layer)
        return self.add_node(
            OPERATOR,
            [x],
            f"layers.{layer}.own",
            domain=NAMESPACE,
            plugin_namespace=NAMESPACE,
            plugin_version="1",
        )


def register(version: str) -> Any:
    """Register a plugin that copies the shape of its input; returns what has to stay alive."""
    import tensorrt_rtx as trt

    class Plugin(
        trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime
    ):
        def __init__(self) -> None:
            trt.IPluginV3.__init__(self)
            trt.IPluginV3OneCore.__init__(self)
            trt.IPluginV3OneBuild.__init__(self)
            trt.IPluginV3OneRuntime.__init__(self)
            self.num_outputs = 1
            self.plugin_name = OPERATOR
            self.plugin_version = version
            self.plugin_namespace = NAMESPACE

        def get_capability_interface(self, kind: Any) -> Any:
            return self

        def get_output_data_types(self, types: Any) -> Any:
            return [types[0]]

        def get_output_shapes(self, inputs: Any, shape_inputs: Any, builder: Any) -> Any:
            return [trt.DimsExprs(inputs[0])]

        def get_fields_to_serialize(self) -> Any:
            return trt.PluginFieldCollection([])

        def configure_plugin(self, inputs: Any, outputs: Any) -> None:
            pass

        def on_shape_change(self, inputs: Any, outputs: Any) -> None:
            pass

        def supports_format_combination(self, position: int, tensors: Any, count: int) -> bool:
            return bool(tensors[position].desc.format == trt.TensorFormat.LINEAR)

        def attach_to_context(self, context: Any) -> Any:
            return self.clone()

        def clone(self) -> Any:
            return Plugin()

    class PluginCreator(trt.IPluginCreatorV3One):
        def __init__(self) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name = OPERATOR
            self.plugin_version = version
            self.plugin_namespace = NAMESPACE
            self.field_names = trt.PluginFieldCollection([])

        def create_plugin(self, name: str, fields: Any, phase: Any) -> Any:
            return Plugin()

    creator = PluginCreator()
    assert trt.get_plugin_registry().register_creator(creator, NAMESPACE)
    return creator


def build(folder: Path, version: str) -> dict[str, int]:
    bundle = write_bundle(folder, PluginDecoder())
    if "import-first" not in sys.argv:
        load_tensorrt("tensorrt-rtx")
    creator = register(version) if version != "none" else None
    plugins = build_engines(bundle, ["a6000"])[0].plugins
    del creator
    return plugins


def check_late(folder: Path, version: str) -> None:
    """Register the plugin when the parser has already taken the function instead."""
    bundle = write_bundle(folder, PluginDecoder())
    manifest = load_manifest(bundle)
    path = bundle / manifest.graphs[0].deployment.path
    trt = load_tensorrt("tensorrt-rtx")
    network = trt.parse(path)
    assert isinstance(network, Network)
    creator = register(version)
    check_network(network, trt, manifest.graphs[0], manifest, OnnxGraph(path))
    del creator


def main(folder: Path, version: str) -> None:
    try:
        if "register-late" in sys.argv:
            check_late(folder, version)
        else:
            print(json.dumps({"plugins": build(folder, version)}))
    except BuildError as error:
        print(json.dumps({"asked": error.asked, "found": error.found, "fix": error.fix}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
