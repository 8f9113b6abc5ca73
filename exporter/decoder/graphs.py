"""Builds the graphs of a decoder: one without exits, segments and heads with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir
from onnxscript import GraphBuilder
from onnxscript.nn import Module

from quatrain.exporter.decoder.assembly import (
    DecoderGraph,
    DrafterGraph,
    HeadGraph,
    SegmentGraph,
)
from quatrain.exporter.decoder.cache_plan import fit_caches
from quatrain.exporter.decoder.device import Device
from quatrain.exporter.decoder.graph_builder import RememberingGraphBuilder
from quatrain.exporter.decoder.graph_names import DRAFTER, list_layered_graphs
from quatrain.exporter.decoder.head_weights import head_names, head_weights
from quatrain.exporter.decoder.joined_projections import Joined
from quatrain.exporter.decoder.layer_setting import LayerSetting
from quatrain.exporter.decoder.layers import LayerStack
from quatrain.exporter.decoder.live_rows import LayerRows, plan_live_rows
from quatrain.exporter.decoder.projection import cast
from quatrain.exporter.decoder.rotary import rotary_tables
from quatrain.exporter.decoder.row_views import HostInputs, RowViews
from quatrain.exporter.decoder.signature import (
    ONNX_DTYPES,
    Embeddings,
    cache_inputs,
    cache_outputs,
    decoder_inputs,
    drafter_inputs,
    rows_input,
    states_input,
)
from quatrain.exporter.spec import DecoderSpec
from quatrain.plugins.operator import DOMAIN, DOMAIN_VERSION
from quatrain.runtime.manifest import TensorInfo

__all__ = ["BuiltGraph", "build_graphs"]

OPSET_VERSION = 24
IR_VERSION = 12

Role = Literal["decoder", "segment", "head", "drafter"]


@dataclass(frozen=True, slots=True)
class BuiltGraph:
    """A graph whose parameters bear the checkpoint's names and do not have their data yet."""

    name: str
    role: Role
    model: ir.Model
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]


def build_graphs(
    spec: DecoderSpec,
    stored_dtypes: Mapping[str, str],
    dtype: str,
    capacity: int,
    *,
    embeddings: Embeddings = "graph",
    device: Device = "engine",
    skip_dead_rows: bool = True,
    joined: Joined = frozenset(),
) -> list[BuiltGraph]:
    """All graphs of `spec` at one compute type.

    Args:
        stored_dtypes: Each tensor's type in the checkpoint, by name; it stays what it is in the
            graph, which casts.
        dtype: The compute type: float32, float16 or bfloat16.
        capacity: Tokens that the caches have room for.
        embeddings: Whether the tables are part of the graph or stay on the host.
        device: What they are to run on. For engines, caches have that capacity; for a CPU they are
            as long as the mask of each call, which the host lets grow.
        skip_dead_rows: False builds the plain reference, which computes every row in every layer
            and keeps all of them in its caches.
        joined: Weights that are multiplied at once.
    """
    build = _GraphFactory(
        spec, stored_dtypes, dtype, capacity, embeddings, device, skip_dead_rows, joined
    )
    names = list_layered_graphs(spec)
    if spec.exits is None:
        drafters = [] if spec.drafter is None else [build.drafter()]
        return [build.layered(names[0], "decoder", 0), *drafters]
    segments = [build.layered(name, "segment", k) for k, name in enumerate(names)]
    heads = dict(zip(head_names(spec), head_weights(spec), strict=True))
    return segments + [build.head(name, weight) for name, weight in heads.items()]


class _GraphFactory:
    """Declares a graph's inputs, runs its module, declares its outputs."""

    def __init__(
        self,
        spec: DecoderSpec,
        stored_dtypes: Mapping[str, str],
        dtype: str,
        capacity: int,
        embeddings: Embeddings,
        device: Device,
        skip_dead_rows: bool,
        joined: Joined,
    ) -> None:
        self.spec = spec
        self.stored_dtypes = stored_dtypes
        self.dtype = dtype
        self.ir_dtype = ir.DataType[ONNX_DTYPES[dtype]]
        self.capacity = capacity
        self.embeddings: Embeddings = embeddings
        self.device: Device = device
        self.skip_dead_rows = skip_dead_rows
        self.joined = joined

    def layered(self, name: str, role: Role, index: int) -> BuiltGraph:
        """A graph with decoder layers: rows, caches in, results, caches out."""
        layers = self.spec.segments[index]
        plan = plan_live_rows(self.spec, layers, skip_dead_rows=self.skip_dead_rows)
        module = self._make_module(role, plan, index)
        self._set_stored_dtypes(module)
        capacity = self.capacity if self.device == "engine" else None
        caches = cache_inputs(fit_caches(self.spec, plan), self.dtype, capacity)
        first = rows_input(self.spec, is_first=index == 0, embeddings=self.embeddings)
        inputs = [*decoder_inputs(first), *caches]
        builder, values = _start_graph(name, inputs)
        views = self._view_rows(builder, values[1:5])
        pairs = list(zip(values[5::2], values[6::2], strict=True))
        results, updated = module(builder.op, values[0], views, pairs)
        outputs = self._declare_results(results)
        for info, value in zip(outputs, results.values(), strict=True):
            _add_output(builder, info, value)
        for info, value in zip(cache_outputs(caches), [v for p in updated for v in p], strict=True):
            _add_output(builder, info, value)
        outputs = [*outputs, *cache_outputs(caches)]
        return BuiltGraph(name, role, _finish_graph(builder), inputs, outputs)

    def head(self, name: str, weight_name: str) -> BuiltGraph:
        """A graph that turns exit states into logits."""
        module = HeadGraph(self.spec, weight_name, self.ir_dtype)
        inputs = [states_input(self.spec.backbone)]
        vocab_size = self.spec.backbone.vocab_size
        shape: list[int | str] = ["batch", "outputs", vocab_size]
        outputs = [TensorInfo(name="logits", dtype="float32", shape=shape)]
        return self._stateless(name, "head", module, inputs, outputs)

    def _stateless(
        self,
        name: str,
        role: Role,
        module: Module,
        inputs: list[TensorInfo],
        outputs: list[TensorInfo],
    ) -> BuiltGraph:
        """A graph without caches, of a module that gives its outputs by name."""
        self._set_stored_dtypes(module)
        builder, values = _start_graph(name, inputs)
        results = module(builder.op, *values)
        for info in outputs:
            _add_output(builder, info, results[info.name])
        return BuiltGraph(name, role, _finish_graph(builder), inputs, outputs)

    def drafter(self) -> BuiltGraph:
        """The graph that guesses the next state."""
        is_host = self.embeddings == "host"
        module = DrafterGraph(self.spec, self.ir_dtype, host_embeddings=is_host)
        inputs = drafter_inputs(self.spec, self.embeddings)
        hidden_size, vocab_size = self.spec.backbone.hidden_size, self.spec.backbone.vocab_size
        outputs = [
            TensorInfo(name="updated_state", dtype="float32", shape=["batch", hidden_size]),
            TensorInfo(name="logits", dtype="float32", shape=["batch", vocab_size]),
        ]
        return self._stateless(DRAFTER, "drafter", module, inputs, outputs)

    def _set_stored_dtypes(self, module: Module, prefix: str = "") -> None:
        prefix = ".".join(filter(None, (prefix, module.name)))
        for parameter in module.parameters(recurse=False):
            name = ".".join(filter(None, (prefix, parameter.name)))
            parameter.type = ir.TensorType(ir.DataType[ONNX_DTYPES[self.stored_dtypes[name]]])
        for child in module.children():
            self._set_stored_dtypes(child, prefix)

    def _make_module(
        self, role: Role, plan: Mapping[int, LayerRows], index: int
    ) -> DecoderGraph | SegmentGraph:
        is_host = self.embeddings == "host"
        setting = LayerSetting(self.spec, self.ir_dtype, self.device, self.joined)
        stack = LayerStack(setting, plan, host_embeddings=is_host)
        if role == "decoder":
            return DecoderGraph(self.spec, stack, self.ir_dtype)
        return SegmentGraph(self.spec, stack, index, self.ir_dtype)

    def _view_rows(self, builder: GraphBuilder, values: Sequence[ir.Value]) -> RowViews:
        cos, sin = rotary_tables(self.spec.backbone, self.capacity * self.spec.num_streams)
        op = builder.op
        tables = [
            cast(op, builder.initializer(ir.tensor(table, name=name)), self.ir_dtype)
            for name, table in (("rotary.cos", cos), ("rotary.sin", sin))
        ]
        inputs = HostInputs(*values)
        return RowViews(
            op, inputs, self.spec, self.capacity, *tables, static_caches=self.device == "engine"
        )

    def _declare_results(self, results: Mapping[str, ir.Value]) -> list[TensorInfo]:
        backbone = self.spec.backbone
        shapes: dict[str, list[int | str]] = {
            "logits": ["batch", "outputs", backbone.vocab_size],
            "updated_hidden": ["batch", "rows", backbone.hidden_size],
            "hidden": ["batch", "outputs", backbone.hidden_size],
            "exit_state": ["batch", "outputs", backbone.hidden_size],
            "router_logprobs": ["batch", "outputs", 2],
        }
        return [TensorInfo(name=name, dtype="float32", shape=shapes[name]) for name in results]


def _start_graph(name: str, inputs: list[TensorInfo]) -> tuple[GraphBuilder, list[ir.Value]]:
    opsets = {"": OPSET_VERSION, DOMAIN: DOMAIN_VERSION}
    builder = RememberingGraphBuilder(ir.Graph([], [], nodes=[], name=name, opset_imports=opsets))
    values = [
        builder.input(info.name, ir.DataType[ONNX_DTYPES[info.dtype]], ir.Shape(info.shape))
        for info in inputs
    ]
    return builder, values


def _add_output(builder: GraphBuilder, info: TensorInfo, value: ir.Value) -> None:
    value.type = ir.TensorType(ir.DataType[ONNX_DTYPES[info.dtype]])
    value.shape = ir.Shape(info.shape)
    builder.add_output(value, info.name)


def _finish_graph(builder: GraphBuilder) -> ir.Model:
    model = ir.Model(builder.graph, ir_version=IR_VERSION, producer_name="quatrain")
    model.functions.update(builder.functions)
    if not builder.functions:
        builder.graph.opset_imports.pop(DOMAIN)
    return model
