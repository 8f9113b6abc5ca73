"""A graph as TensorRT understood it: what became of its inputs, caches and plugins."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from quatrain.exporter.engine.callbacks import BuildControl, make_monitor, make_writer
from quatrain.runtime.manifest import Profile

__all__ = ["Creator", "Network", "PluginLayer", "TensorFacts"]

_DTYPES = ("float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")


@dataclass(frozen=True, slots=True, order=True)
class Creator:
    """A plugin the registry can create."""

    name: str
    version: str
    namespace: str

    def __str__(self) -> str:
        return f"{self.namespace}::{self.name}:{self.version}"


@dataclass(frozen=True, slots=True)
class PluginLayer:
    """A plugin in a network; `node` is the name of the ONNX node it came from."""

    node: str
    creator: Creator


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A network input or output; -1 stands for a dynamic dimension."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Network:
    """A parsed ONNX graph. Holds TensorRT's objects, weights included: drop it to free them."""

    def __init__(self, trt: Any, builder: Any, network: Any, parser: Any) -> None:
        self._trt = trt
        self._builder = builder
        self._network = network
        self._parser = parser  # owns the weights the network points to
        self.is_attention_decomposable = False

    @property
    def inputs(self) -> list[TensorFacts]:
        """The graph's inputs, in order."""
        count = range(self._network.num_inputs)
        return [self._describe_tensor(self._network.get_input(index)) for index in count]

    @property
    def outputs(self) -> list[TensorFacts]:
        """The graph's outputs, in order."""
        count = range(self._network.num_outputs)
        return [self._describe_tensor(self._network.get_output(index)) for index in count]

    @property
    def unused_inputs(self) -> list[str]:
        """Inputs that no output depends on.

        TensorRT drops them with a warning at most: an input of a node that its parser ignores, or
        of layers that lead nowhere else.
        """
        makers: dict[str, Any] = {}
        pending = [tensor.name for tensor in self.outputs]
        for layer in self._layers():
            makers |= dict.fromkeys(_name_tensors(layer.get_output, layer.num_outputs), layer)
            if layer.num_outputs == 0:  # the condition of a branch, the end of a loop
                pending += _name_tensors(layer.get_input, layer.num_inputs)
        used: set[str] = set()
        while pending:
            name = pending.pop()
            if name in used:
                continue
            used.add(name)
            maker = makers.get(name)
            if maker is not None:
                pending += _name_tensors(maker.get_input, maker.num_inputs)
        return [tensor.name for tensor in self.inputs if tensor.name not in used]

    @property
    def cache_updates(self) -> dict[str, str]:
        """The caches updated in place: the name of the input and that of the output it aliases."""
        return {
            layer.get_input(0).name: layer.get_output(0).name
            for layer in self._layers(self._trt.LayerType.KV_CACHE_UPDATE)
        }

    @property
    def plugins(self) -> list[PluginLayer]:
        """The plugin layers, in order."""
        return [
            PluginLayer(layer.name, self._describe_plugin(layer))
            for layer in self._layers(self._trt.LayerType.PLUGIN_V3)
        ]

    def find_plugin_refusals(self, longest: int) -> dict[str, str]:
        """The operators of ours that have no kernel for a layer's inputs, and why.

        Asked before a build, since TensorRT crashes at a plugin that refuses during one. The plugin
        is asked again then, with the true bounds.

        Args:
            longest: What to take for the size of a dynamic dimension.
        """
        refusals: dict[str, str] = {}
        for layer in self._layers(self._trt.LayerType.PLUGIN_V3):
            layer.__class__ = self._trt.IPluginV3Layer
            check = getattr(layer.plugin, "find_refusal", None)
            inputs = [layer.get_input(index) for index in range(layer.num_inputs)]
            reason = check([(t.dtype, tuple(t.shape)) for t in inputs], longest) if check else None
            if reason is not None:
                refusals[layer.plugin.plugin_name] = f"{reason} (at {layer.name})"
        return refusals

    def make_attention_decomposable(self) -> None:
        """Let attention fall apart into single operations where there is no fused kernel."""
        self.is_attention_decomposable = True
        for layer in self._layers(self._trt.LayerType.ATTENTION_OUTPUT):
            layer.__class__ = self._trt.IAttentionOutputLayer
            layer.attention.decomposable = True

    def build(
        self,
        profiles: Sequence[Profile],
        sm: str | None,
        write: Callable[[bytes], int],
        control: BuildControl,
    ) -> bool:
        """Build and stream the engine to `write`; `sm` is the compute capability to build for,
        None (classic TensorRT) the GPU here. False: it failed, and the log says why.

        TensorRT takes no notice of what `write` returns or raises; the caller has to.
        """
        trt = self._trt
        config = self._builder.create_builder_config()
        for profile in profiles:
            config.add_optimization_profile(self._create_profile(profile))
        if sm is not None:
            config.num_compute_capabilities = 1
            capability = getattr(trt.ComputeCapability, f"SM{sm.replace('.', '')}")
            config.set_compute_capability(capability, 0)
        monitor = make_monitor(trt, control)
        config.progress_monitor = monitor
        writer = make_writer(trt, write)
        return bool(self._builder.build_serialized_network_to_stream(self._network, config, writer))

    def _create_profile(self, profile: Profile) -> Any:
        created = self._builder.create_optimization_profile()
        for name, (smallest, usual, largest) in profile.shapes.items():
            created.set_shape(name, smallest, usual, largest)
        return created

    def _layers(self, kind: Any = None) -> Iterator[Any]:
        for layer in map(self._network.get_layer, range(self._network.num_layers)):
            if kind is None or layer.type == kind:
                yield layer

    def _describe_tensor(self, tensor: Any) -> TensorFacts:
        dtype = next((n for n in _DTYPES if getattr(self._trt, n, None) == tensor.dtype), "other")
        return TensorFacts(tensor.name, dtype, tuple(tensor.shape))

    def _describe_plugin(self, layer: Any) -> Creator:
        layer.__class__ = self._trt.IPluginV3Layer
        core = layer.plugin.get_capability_interface(self._trt.PluginCapabilityType.CORE)
        return Creator(core.plugin_name, core.plugin_version, core.plugin_namespace)


def _name_tensors(get: Callable[[int], Any], count: int) -> list[str]:
    tensors = (get(index) for index in range(count))
    return [tensor.name for tensor in tensors if tensor is not None]
