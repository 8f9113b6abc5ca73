"""Writes the graphs of a decoder into a bundle, their weights attached by reference."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.checkpoint.lazy_tensor import SUPPORTED_DTYPES, LazyTensor
from quatrain.exporter.decoder.device import Device
from quatrain.exporter.decoder.graphs import BuiltGraph, build_graphs
from quatrain.exporter.options import ExportOptions
from quatrain.exporter.quantization import PackedWeights, read_packed_weights
from quatrain.runtime.manifest import Graph, GraphVariant

__all__ = ["WEIGHTS_FOLDER", "attach_weights", "make_graphs", "write_graphs"]

WEIGHTS_FOLDER = "weights"


def write_graphs(
    bundle: Path,
    checkpoint: Checkpoint,
    options: ExportOptions,
    packed: PackedWeights | None = None,
) -> list[Graph]:
    """Write every graph for the CPU (float32, caches that grow) and for engines (the compute type,
    static caches) and describe it.

    Both read the same stored weights out of the bundle's weight files, by offset; the packed ones,
    where there are some.
    """
    cpu = _write_variants(bundle, checkpoint, "float32", options, "cpu", packed)
    engine = _write_variants(bundle, checkpoint, options.dtype, options, "engine", packed)
    return [
        Graph(
            name=built.name,
            role=built.role,
            path=variant.path,
            dtype=variant.dtype,
            inputs=variant.inputs,
            outputs=variant.outputs,
            deployment=deployment,
        )
        for (built, variant), (_, deployment) in zip(cpu, engine, strict=True)
    ]


def make_graphs(
    checkpoint: Checkpoint,
    dtype: str,
    options: ExportOptions,
    device: Device,
    packed: PackedWeights | None = None,
) -> Iterator[BuiltGraph]:
    """Build every graph at one compute type, its weights attached: the packed ones, where there are
    some."""
    stored = {name: SUPPORTED_DTYPES[t.dtype] for name, t in checkpoint.tensors.items()}
    for built in build_graphs(
        checkpoint.spec,
        stored,
        dtype,
        options.capacity,
        embeddings=options.embeddings,
        device=device,
        joined=frozenset() if packed is None else packed.joined,
    ):
        if packed is not None:
            read_packed_weights(built.model, packed.matrices, dtype, WEIGHTS_FOLDER)
        tensors = checkpoint.tensors if packed is None else packed.checkpoint.tensors
        attach_weights(built.model.graph, tensors)
        yield built


def _write_variants(
    bundle: Path,
    checkpoint: Checkpoint,
    dtype: str,
    options: ExportOptions,
    device: Device,
    packed: PackedWeights | None,
) -> list[tuple[BuiltGraph, GraphVariant]]:
    written = []
    for built in make_graphs(checkpoint, dtype, options, device, packed):
        path = f"{built.name}.{device}.{dtype}.onnx"
        ir.save(built.model, bundle / path)
        variant = GraphVariant(path=path, dtype=dtype, inputs=built.inputs, outputs=built.outputs)
        written.append((built, variant))
    return written


def attach_weights(graph: ir.Graph, tensors: Mapping[str, LazyTensor]) -> None:
    """Say of every parameter where in a bundle's weight files its data lies."""
    for name, value in graph.initializers.items():
        if value.const_value is not None:
            continue
        tensor = tensors[name]
        assert value.dtype is not None
        value.const_value = ir.ExternalTensor(
            f"{WEIGHTS_FOLDER}/{tensor.file.name}",
            tensor.offset,
            tensor.nbytes,
            value.dtype,
            shape=ir.Shape(tensor.shape),
            name=name,
        )
