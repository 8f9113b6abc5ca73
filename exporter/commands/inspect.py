"""`quatrain inspect`: what a checkpoint or a bundle holds."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from quatrain.exporter.commands.activation_table import (
    add_activation_flags,
    inspect_activations,
    refuse_stray_flags,
)
from quatrain.exporter.commands.cache_table import make_cache_table
from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.drafter_facts import describe_drafter
from quatrain.exporter.commands.engine_table import make_engine_table
from quatrain.exporter.commands.feed_forward_facts import describe_feed_forward
from quatrain.exporter.commands.file_facts import show_comparisons
from quatrain.exporter.commands.memory_facts import describe_cache, describe_weights, format_kib
from quatrain.exporter.commands.path_flag import read_path
from quatrain.exporter.commands.quantization_facts import describe_codes
from quatrain.exporter.commands.verification_facts import describe_verification
from quatrain.exporter.table import Table, format_bytes, format_facts

if TYPE_CHECKING:
    from quatrain.exporter.inspection import Inspection
    from quatrain.runtime.manifest import Manifest
    from quatrain.runtime.manifest_records import Quantization

__all__ = ["configure_parser", "run"]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "path", metavar="CHECKPOINT|BUNDLE", type=read_path, help="checkpoint or bundle folder"
    )
    parser.add_argument(
        "--check-weights",
        action="store_true",
        help="of a checkpoint: read every weight, and name those that are NaN or infinite; of a"
        " bundle: compare every file with the size and SHA-256 in its manifest (linked weights have"
        " a SHA-256 there if they were exported with --hash-weights, and are held to size, time and"
        " header otherwise)",
    )
    add_activation_flags(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Show it; 1 where --check-weights found weights no model can run with."""
    if args.activations is not None:
        return inspect_activations(args, console)
    refuse_stray_flags(args)
    from quatrain.runtime.folder_kind import find_kind

    if find_kind(args.path) == "bundle":
        return _inspect_bundle(args.path, args.check_weights, console)
    return _inspect_checkpoint(args.path, args.check_weights, console)


def _inspect_bundle(path: Path, check_weights: bool, console: Console) -> int:
    from quatrain.runtime.bundle_check import list_comparisons, verify_bundle
    from quatrain.runtime.manifest import dump_manifest, load_manifest

    manifest = load_manifest(path)
    document: object = dump_manifest(manifest)
    if check_weights:
        verify_bundle(path, manifest, full=True)
        compared = list_comparisons(manifest)
        show_comparisons(compared, console)
        document = {**json.loads(dump_manifest(manifest)), "files_compared": compared}
    console.set_document(document)
    console.show(_format_manifest(path, manifest))
    console.show_table(_make_graph_table(manifest))
    console.show_table(make_cache_table(manifest.cache))
    if manifest.engines:
        console.show_table(make_engine_table(manifest.engines))
    return 0


def _inspect_checkpoint(path: Path, check_weights: bool, console: Console) -> int:
    from quatrain.exporter.inspection import inspect_checkpoint

    progress = console.make_progress()
    inspection = inspect_checkpoint(path, check_weights=check_weights, progress=progress)
    console.set_document(inspection)
    console.show(_format_inspection(inspection))
    bad = inspection.bad_weights or []
    for weight in bad:
        console.show(f"  not finite: {weight.name}: {weight.num_nan} NaN, {weight.num_inf} Inf")
    return 1 if bad else 0


def _format_inspection(inspection: "Inspection") -> str:
    dtypes = inspection.dtype_bytes.items()
    facts = {
        "model": _describe_backbone(inspection.spec),
        "parameters": f"{inspection.num_parameters:,}",
        "weights": ", ".join(f"{format_bytes(count)} {dtype}" for dtype, count in dtypes),
        **describe_weights(inspection.weights),
        **describe_feed_forward(inspection.spec["feed_forward"], inspection.feed_forward_bill),
        **describe_drafter(inspection.spec["drafter"]),
        "cache": f"{describe_cache(inspection.cache)} (in 16 bits)",
        "files": ", ".join(f"{f.name} ({format_bytes(f.bytes)})" for f in inspection.files),
        "tokenizer": ", ".join(inspection.tokenizer_files) or "none: token ids only",
        "BOS, EOS": f"{inspection.bos_token_id}, {_join(inspection.eos_token_ids)}",
    }
    if inspection.settings_file:
        facts["settings"] = inspection.settings_file
    if inspection.leftovers:
        facts["left out"] = f"{len(inspection.leftovers)}: {_join(inspection.leftovers)}"
    return format_facts(f"{inspection.folder}: {inspection.family} checkpoint", facts)


def _format_manifest(path: Path, manifest: "Manifest") -> str:
    limits, versions = manifest.limits, manifest.versions
    facts = {
        "model": _describe_backbone(manifest.spec),
        "weights": f"stored in {manifest.stored_dtype}, engines compute in"
        f" {manifest.deployment_dtype}, CPUs in float32",
        **_describe_quantization(manifest.quantization),
        **describe_feed_forward(manifest.spec.get("feed_forward")),
        **describe_drafter(manifest.spec.get("drafter"), limits.max_draft),
        "embeddings": _describe_embeddings(manifest),
        "cache": _describe_bundle_cache(manifest),
        "limits": f"max_seq_len {limits.max_seq_len}, max_batch {limits.max_batch},"
        f" prefill_chunk {limits.prefill_chunk}, max_deferred {limits.max_deferred}",
        "files": f"{len(manifest.files)}, {format_bytes(sum(f.bytes for f in manifest.files))}",
        "tokenizer": manifest.tokenizer.path if manifest.tokenizer else "none: token ids only",
        "EOS": _join(manifest.eos_token_ids),
        "self-test": "recorded" if manifest.self_test else "none",
        "compared": describe_verification(manifest.verification, manifest.quantized),
        "written by": f"quatrain {versions.quatrain}, onnx {versions.onnx},"
        f" onnxruntime {versions.onnxruntime}",
    }
    if manifest.exits:
        facts["exits"] = f"after layers {_join(manifest.exits.layers)}"
    return format_facts(f"{path}: {manifest.family} bundle", facts)


def _describe_quantization(quantization: "Quantization | None") -> dict[str, str]:
    if quantization is None:
        return {}
    codes = describe_codes(quantization.kind, quantization.group_size, quantization.head_bits)
    return {"quantized": codes}


def _describe_embeddings(manifest: "Manifest") -> str:
    rows = manifest.cache.rows_per_token
    streams = "1 row a token" if rows == 1 else f"{rows} rows a token"
    if manifest.embeddings is None:
        return f"in the graph, {streams}"
    tables = len(manifest.embeddings.tables)
    return f"on the host, {streams}: {tables} {'table' if tables == 1 else 'tables'}"


def _describe_bundle_cache(manifest: "Manifest") -> str:
    from quatrain.runtime.manifest import ITEM_BYTES

    cache = manifest.cache
    elements = sum(
        2 * layer.num_heads * layer.head_dim * cache.positions(layer) // cache.capacity
        for layer in cache.layers
    )
    per_token = elements * ITEM_BYTES[manifest.deployment_dtype]
    return (
        f"{format_kib(per_token)} a token in {manifest.deployment_dtype},"
        f" room for {cache.capacity} tokens"
    )


def _make_graph_table(manifest: "Manifest") -> Table:
    rows = [
        (
            graph.name,
            graph.role,
            str(sum(layer.graph == graph.name for layer in manifest.cache.layers)),
            graph.path,
            graph.deployment.path,
        )
        for graph in manifest.graphs
    ]
    columns = ("graph", "role", "layers", "for CPUs", "for engines")
    return Table("Graphs", columns, rows, numeric=frozenset({"layers"}))


def _describe_backbone(spec: dict[str, object]) -> str:
    backbone = spec.get("backbone")
    facts = backbone if isinstance(backbone, dict) else {}
    return (
        f"{facts.get('model_type')}, {facts.get('num_hidden_layers')} layers of"
        f" {facts.get('hidden_size')}, vocabulary of {facts.get('vocab_size')}"
    )


def _join(items: list[int] | list[str]) -> str:
    shown = ", ".join(map(str, items[:8]))
    return f"{shown}, ..." if len(items) > 8 else shown or "none"
