"""A model whose needs are to be counted: from a bundle's files, or as an export would make it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.chosen_checkpoint import open_chosen
from quatrain.exporter.decoder.graphs import BuiltGraph
from quatrain.exporter.description import describe_bundle
from quatrain.exporter.graph_files import make_graphs
from quatrain.exporter.memory import EmbeddingsPlace
from quatrain.exporter.options import ExportOptions, ExportRequest, settle_options
from quatrain.exporter.quantization import WeightKind, plan_packing
from quatrain.exporter.spec import DType
from quatrain.runtime.bundle_check import verify_bundle
from quatrain.runtime.manifest import Graph, GraphVariant, Manifest, load_manifest

__all__ = ["PlannedModel", "load_planned", "make_planned", "open_planned"]


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A manifest and by name the graphs that engines are built from, without their weights.

    `is_drafter_left_out` says that the checkpoint has a drafter which is not in the plan; nobody
    knows of a bundle.
    """

    manifest: Manifest
    graphs: dict[str, onnx.GraphProto]
    is_drafter_left_out: bool = False


def open_planned(
    checkpoint: Path,
    *,
    dtype: DType | None = None,
    max_seq_len: int | None = None,
    max_batch: int = 4,
    prefill_chunk: int | None = None,
    max_deferred: int | None = None,
    embeddings: EmbeddingsPlace = "graph",
    dense_fallback: Sequence[int] | None = None,
    drafter: bool = False,
    max_draft: int | None = None,
    quantize: WeightKind | None = None,
    group_size: int | None = None,
    head_bits: int | None = None,
) -> PlannedModel:
    """Of a checkpoint, as `export_checkpoint` would make it of these arguments."""
    request = ExportRequest(
        dtype=dtype,
        max_seq_len=max_seq_len,
        max_batch=max_batch,
        prefill_chunk=prefill_chunk,
        max_deferred=max_deferred,
        targets=(),
        self_test=False,
        embeddings=embeddings,
        dense_fallback=dense_fallback,
        drafter=drafter,
        max_draft=max_draft,
        quantize=quantize,
        group_size=group_size,
        head_bits=head_bits,
    )
    opened = open_chosen(checkpoint, request)
    return make_planned(opened, settle_options(opened, request))


def load_planned(bundle: Path) -> PlannedModel:
    """Of a bundle; raises `BundleError` if it is not what was exported."""
    manifest = load_manifest(bundle)
    verify_bundle(bundle, manifest)
    graphs = {
        graph.name: onnx.load(bundle / graph.deployment.path, load_external_data=False).graph
        for graph in manifest.graphs
    }
    return PlannedModel(manifest, graphs)


def make_planned(checkpoint: Checkpoint, options: ExportOptions) -> PlannedModel:
    """Of a checkpoint: its graphs are built, and nothing is written."""
    packed = None
    if options.scheme is not None:
        packed = plan_packing(checkpoint, options.scheme, options.dtype)
    built = list(make_graphs(checkpoint, options.dtype, options, "engine", packed))
    described = [_describe(graph, options.dtype) for graph in built]
    manifest = describe_bundle(checkpoint, options, described, [], None)
    is_left_out = checkpoint.spec.drafter is None and checkpoint.drafter_absence is None
    graphs = {g.name: ir.to_proto(g.model).graph for g in built}
    return PlannedModel(manifest, graphs, is_left_out)


def _describe(graph: BuiltGraph, dtype: str) -> Graph:
    variant = GraphVariant(path="", dtype=dtype, inputs=graph.inputs, outputs=graph.outputs)
    return Graph(
        name=graph.name,
        role=graph.role,
        path="",
        dtype=dtype,
        inputs=graph.inputs,
        outputs=graph.outputs,
        deployment=variant,
    )
