"""Makes a TensorRT plugin (IPluginV3) of an operator's definition, for either TensorRT.

Nothing is raised while an engine is built: TensorRT-RTX 1.7 crashes at a plugin that refuses its
formats or its configuration, and builds without the fields that could not be serialized. Errors
are noted (`problems.py`), and whoever builds must look there before he keeps an engine.
"""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from quatrain.plugins.definition import DefinitionFactory, DType, OutputFacts, TensorFacts
from quatrain.plugins.operator import DOMAIN
from quatrain.plugins.plugin_fields import declare_fields, make_fields, read_attributes, read_bytes
from quatrain.plugins.plugin_state import PluginState
from quatrain.plugins.problems import note_problem

__all__ = ["make_creator"]

# The modules name types as NumPy does.
_DTYPES: tuple[DType, ...] = ("float32", "float16", "bfloat16", "int64", "bool")


def make_creator(trt: Any, factory: DefinitionFactory) -> Any:
    """The creator of an operator's plugins, for the module `tensorrt` or `tensorrt_rtx`.

    TensorRT only points to it: whoever registers it has to keep it.
    """
    faces = (trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime)
    facts = {"trt": trt, "factory": factory, "faces": faces}
    plugin = type(f"{factory.operator.name}Plugin", (_Plugin, *faces), facts)
    creator_facts = {"trt": trt, "factory": factory, "plugin": plugin}
    bases = (_Creator, trt.IPluginCreatorV3One)
    return type(f"{factory.operator.name}Creator", bases, creator_facts)()


class _Creator:
    """Methods of an IPluginCreatorV3One."""

    trt: Any
    factory: DefinitionFactory
    plugin: Any

    def __init__(self) -> None:
        self.trt.IPluginCreatorV3One.__init__(self)
        self.name = self.factory.operator.name
        self.plugin_version = self.factory.operator.plugin_version
        self.plugin_namespace = DOMAIN
        self.field_names = declare_fields(self.trt, self.factory)

    def create_plugin(self, name: str, fields: Any, phase: Any) -> Any:
        """From the attributes of a node, or from what an engine stores; None if that fails."""
        try:
            attributes = read_attributes(self.factory, fields)
            is_stored = phase == self.trt.TensorRTPhase.RUNTIME
            stored = read_bytes(fields) if is_stored else None
            return self.plugin(PluginState(self.factory, attributes, stored))
        except Exception as error:
            note_problem(self.name, f"{error} (at {name})")
            return None


class _Plugin:
    """Methods of an IPluginV3 with all its capabilities."""

    trt: Any
    factory: DefinitionFactory
    faces: tuple[Any, ...]

    def __init__(self, state: PluginState) -> None:
        for face in self.faces:
            face.__init__(self)
        self.state = state
        self.num_outputs = self.factory.num_outputs
        self.plugin_name = self.factory.operator.name
        self.plugin_version = self.factory.operator.plugin_version
        self.plugin_namespace = DOMAIN
        self._arrays: list[NDArray[Any]] = []
        self._dtypes: tuple[DType, ...] | None = None

    def clone(self) -> Any:
        """A plugin of the same node."""
        return type(self)(self.state.clone())

    def get_capability_interface(self, kind: Any) -> Any:
        """One object is all of them."""
        return self

    # --- build ---

    def get_output_data_types(self, types: Sequence[Any]) -> list[Any]:
        """From those of the inputs, of which nothing is asked yet."""
        declared = self.factory.output_dtypes
        outputs = [types[of] if isinstance(of, int) else getattr(self.trt, of) for of in declared]
        self.state.dtypes = tuple(self._name_dtype(dtype) for dtype in (*types, *outputs))
        return outputs

    def get_output_shapes(
        self, inputs: Sequence[Any], shape_inputs: Sequence[Any], builder: Any
    ) -> list[Any]:
        """Where the definition refuses, any shapes: the network is thrown away."""
        try:
            dtypes = (self.state.dtypes or ())[: len(inputs)]
            outputs = self.state.definition.describe_outputs(dtypes, [len(i) for i in inputs])
        except Exception as error:
            self._note(error)
            return [self.trt.DimsExprs(inputs[0])] * self.num_outputs
        return [self._make_dims(output, inputs, builder) for output in outputs]

    def supports_format_combination(self, position: int, tensors: Any, num_inputs: int) -> bool:
        """Row-major tensors, of the types that the network has."""
        tensor = tensors[position].desc
        dtypes = self.state.dtypes
        is_known = dtypes is None or self._name_dtype(tensor.type) == dtypes[position]
        return bool(tensor.format == self.trt.TensorFormat.LINEAR) and is_known

    def configure_plugin(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Take one profile's bounds."""
        try:
            self.state.configure([self._describe(tensor) for tensor in inputs])
        except Exception as error:
            self._note(error)

    def get_workspace_size(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
        """In bytes."""
        try:
            facts = [self._describe(tensor) for tensor in inputs]
            return self.state.definition.count_workspace_bytes(facts)
        except Exception as error:
            self._note(error)
            return 0

    def find_refusal(self, inputs: Sequence[tuple[Any, Sequence[int]]], longest: int) -> str | None:
        """Why there is no kernel for inputs of these types and shapes; None if there is one.

        Args:
            longest: What to take for the largest size of a dynamic dimension.
        """
        facts = []
        for dtype, shape in inputs:
            most = tuple(longest if dim < 0 else dim for dim in shape)
            facts.append(TensorFacts(self._name_dtype(dtype), tuple(shape), most))
        try:
            self.state.definition.check(facts)
        except Exception as error:
            return str(error) or type(error).__name__
        return None

    # --- store and run ---

    def get_fields_to_serialize(self) -> Any:
        """The node's attributes and the kernels, compiled now if they are not."""
        try:
            stored = self.state.get_stored()
        except Exception as error:
            self._note(error)
            stored = b""
        fields, arrays = make_fields(self.trt, self.factory, self.state.attributes, stored)
        self._arrays += arrays  # as long as the plugin lives: TensorRT only points to them
        return fields

    def attach_to_context(self, context: Any) -> Any:
        """A clone with its kernels loaded: a run captured into a graph must not load any."""
        attached = self.clone()
        try:
            attached.state.load()
        except Exception as error:
            self._note(error)
            raise
        return attached

    def on_shape_change(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Nothing: `enqueue` looks at the shapes."""

    def set_tactic(self, tactic: int) -> None:
        """Nothing: there is only one."""

    def enqueue(
        self,
        input_facts: Sequence[Any],
        output_facts: Sequence[Any],
        inputs: Sequence[int],
        outputs: Sequence[int],
        workspace: int,
        stream: int,
    ) -> None:
        """Queue the launches of one call on the stream."""
        try:
            if self._dtypes is None:  # an engine's types are fixed, its shapes are not
                self._dtypes = tuple(self._name_dtype(fact.type) for fact in input_facts)
            # A slice of `Dims` is a tuple, and made ten times as fast as by going through it.
            shapes = tuple([fact.dims[:] for fact in input_facts])
            self.state.enqueue(self._dtypes, shapes, [*inputs, *outputs, workspace], stream)
        except Exception as error:
            self._note(error)
            raise

    def _note(self, error: Exception) -> None:
        note_problem(self.plugin_name, str(error) or type(error).__name__)

    def _name_dtype(self, dtype: Any) -> DType:
        for name in _DTYPES:
            if getattr(self.trt, name) == dtype:
                return name
        return "other"  # type: ignore[return-value]  # no kernel takes it, and `check` says so

    def _describe(self, tensor: Any) -> TensorFacts:
        dtype = self._name_dtype(tensor.desc.type)
        return TensorFacts(dtype, tuple(tensor.desc.dims), tuple(tensor.max))

    def _make_dims(self, output: OutputFacts, inputs: Sequence[Any], builder: Any) -> Any:
        return self.trt.DimsExprs(
            [
                builder.constant(dim) if isinstance(dim, int) else inputs[dim[0]][dim[1]]
                for dim in output.shape
            ]
        )
