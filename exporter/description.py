"""What a bundle says of itself: the manifest of freshly written graphs."""

from importlib.metadata import PackageNotFoundError, version

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.checkpoint.lazy_tensor import SUPPORTED_DTYPES
from quatrain.exporter.checkpoint.names import stream_table_name
from quatrain.exporter.decoder.cache_plan import plan_caches
from quatrain.exporter.decoder.graph_names import DRAFTER
from quatrain.exporter.decoder.head_weights import head_names
from quatrain.exporter.graph_files import WEIGHTS_FOLDER
from quatrain.exporter.options import ExportOptions
from quatrain.exporter.quantization.scheme import Scheme
from quatrain.exporter.spec import DecoderSpec
from quatrain.exporter.spec_json import describe_spec
from quatrain.runtime.manifest import (
    SCHEMA_VERSION,
    CacheLayer,
    CacheLayout,
    DraftLayout,
    ExitLayout,
    FileRecord,
    Graph,
    HostEmbeddings,
    Manifest,
    Quantization,
    StoredTable,
    TokenizerInfo,
    Versions,
)

__all__ = ["describe_bundle"]


def describe_bundle(
    checkpoint: Checkpoint,
    options: ExportOptions,
    graphs: list[Graph],
    records: list[FileRecord],
    tokenizer: TokenizerInfo | None,
) -> Manifest:
    """The manifest of a bundle of these graphs and files, without engines and self-test."""
    spec = checkpoint.spec
    return Manifest(
        schema_version=SCHEMA_VERSION,
        family=spec.family,
        spec=describe_spec(spec),
        vocab_size=spec.backbone.vocab_size,
        stored_dtype=checkpoint.stored_dtype,
        deployment_dtype=options.dtype,
        limits=options.limits,
        cache=CacheLayout(
            capacity=options.capacity,
            layers=_list_cache_layers(spec, graphs),
            rows_per_token=spec.num_streams,
        ),
        graphs=graphs,
        eos_token_ids=checkpoint.eos_token_ids,
        files=records,
        versions=_find_versions(),
        exits=_describe_exits(spec, graphs),
        quantization=_describe_scheme(options.scheme),
        drafter=None if spec.drafter is None else DraftLayout(graph=DRAFTER),
        document_token_id=checkpoint.document_token_id,
        embeddings=_describe_tables(checkpoint) if options.embeddings == "host" else None,
        tokenizer=tokenizer,
    )


def _list_cache_layers(spec: DecoderSpec, graphs: list[Graph]) -> list[CacheLayer]:
    """The cache of each decoder layer, and the graph that holds it."""
    caches = plan_caches(spec)
    layered = [graph for graph in graphs if graph.role in ("decoder", "segment")]
    return [
        CacheLayer(
            layer=layer,
            graph=graph.name,
            num_heads=caches[layer].num_heads,
            head_dim=caches[layer].head_dim,
            unit=caches[layer].unit,
            window=caches[layer].window,
        )
        for graph, layers in zip(layered, spec.segments, strict=True)
        for layer in layers
    ]


def _describe_tables(checkpoint: Checkpoint) -> HostEmbeddings:
    """Where in the bundle's weight files the table of each stream lies, in stream order."""
    names = [stream_table_name(stream) for stream in range(checkpoint.spec.num_streams)]
    tables = [
        StoredTable(
            path=f"{WEIGHTS_FOLDER}/{tensor.file.name}",
            offset=tensor.offset,
            dtype=SUPPORTED_DTYPES[tensor.dtype],
            shape=list(tensor.shape),
        )
        for tensor in (checkpoint.tensors[name] for name in names)
    ]
    return HostEmbeddings(tables=tables)


def _describe_exits(spec: DecoderSpec, graphs: list[Graph]) -> ExitLayout | None:
    if spec.exits is None:
        return None
    return ExitLayout(
        layers=[*spec.exits.layers, spec.backbone.num_hidden_layers],
        segments=[graph.name for graph in graphs if graph.role == "segment"],
        heads=head_names(spec),
    )


def _describe_scheme(scheme: Scheme | None) -> Quantization | None:
    if scheme is None:
        return None
    return Quantization(
        kind=scheme.kind, group_size=scheme.group_size, head_bits=scheme.bits_of_heads
    )


def _find_versions() -> Versions:
    return Versions(
        quatrain=_find_version("quatrain"),
        onnx=_find_version("onnx"),
        onnxruntime=_find_version("onnxruntime"),
    )


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
