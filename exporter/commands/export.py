"""`quatrain export`: a checkpoint becomes a bundle."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.drafter_facts import describe_drafter
from quatrain.exporter.commands.engine_table import make_engine_table
from quatrain.exporter.commands.feed_forward_facts import describe_feed_forward
from quatrain.exporter.commands.memory_facts import describe_cache, describe_weights
from quatrain.exporter.commands.stage_table import make_stage_table
from quatrain.exporter.commands.table import format_bytes, format_facts
from quatrain.exporter.commands.target_flag import add_target_flag

if TYPE_CHECKING:
    from quatrain.exporter.export import ExportReport
    from quatrain.exporter.plan import ExportPlan

__all__ = ["configure_parser", "run"]

# The flags that `plan_export` and `export_checkpoint` both take.
_PLANNED = (
    "dtype",
    "max_seq_len",
    "max_batch",
    "prefill_chunk",
    "max_deferred",
    "targets",
    "self_test",
    "embeddings",
    "drafter",
    "max_draft",
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `export_checkpoint`."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="checkpoint folder")
    parser.add_argument(
        "-o", "--output", metavar="BUNDLE", type=Path, required=True, help="bundle to write"
    )
    parser.add_argument(
        "--dtype",
        choices=("float16", "bfloat16", "float32"),
        help="compute type of the engines (default: bfloat16 where the weights are stored so,"
        " else float16); CPUs always compute in float32",
    )
    _add_model_flags(parser)
    _add_limit_flags(parser.add_argument_group("limits"))
    add_target_flag(parser, required=False)
    parser.add_argument(
        "--weights",
        choices=("link", "copy"),
        help="hard-link or copy the weight files (default: link where the file system allows)",
    )
    parser.add_argument(
        "--hash-weights", action="store_true", help="record the SHA-256 of linked weights, too"
    )
    parser.add_argument(
        "--self-test",
        action=argparse.BooleanOptionalAction,
        help="record the first greedy tokens, to hold devices to (default: up to 1 GiB of weights)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an older bundle")
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be done, and write nothing"
    )


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--embeddings",
        choices=("graph", "host"),
        default="graph",
        help="keep the embedding tables in the graph (the default) or in memory of the host, which"
        " then looks rows up; --dry-run shows what either takes",
    )
    parser.add_argument(
        "--dense-fallback",
        metavar="LAYERS",
        help="layers of a bank-top-k model that run all their channels: none, all, or layers"
        " counted from 0 such as 0-3,5,7-9 (default: those that the checkpoint names)",
    )
    parser.add_argument(
        "--drafter",
        action="store_true",
        help="keep the low-level dynamics of a HiLP or NextLat model, to draft with (default: drop"
        " them, which leaves a plain decoder)",
    )


def _add_limit_flags(group: argparse._ArgumentGroup) -> None:
    for flag, default, text in (
        ("--max-seq-len", None, "tokens a sequence may have (default: the model's, at most 4096)"),
        ("--max-batch", 4, "sequences decoded together (default: 4)"),
        ("--prefill-chunk", None, "tokens of a prompt run in one call (default: 512 rows of them)"),
        ("--max-deferred", 16, "rows an early exit may leave for later (default: 16)"),
        ("--max-draft", 8, "tokens drafted at once, with --drafter (default: 8)"),
    ):
        group.add_argument(flag, type=int, default=default, metavar="N", help=text)


def run(args: argparse.Namespace, console: Console) -> int:
    """Tell the settled plan, and carry it out unless it is a dry run."""
    from quatrain.exporter.export import export_checkpoint, plan_export

    planned = {name: getattr(args, name) for name in _PLANNED}
    planned["dense_fallback"] = _read_layers(args.checkpoint, args.dense_fallback)
    plan = plan_export(args.checkpoint, **planned)
    if args.dry_run:
        console.set_document(plan)
        console.show(_format_plan(plan))
        return 0
    console.say(_format_plan(plan))
    report = export_checkpoint(
        args.checkpoint,
        args.output,
        **planned,
        weights=args.weights,
        hash_weights=args.hash_weights,
        overwrite=args.overwrite,
        progress=console.make_progress(),
    )
    console.set_document(report)
    console.show_table(make_stage_table(report.stages))
    if report.manifest.engines:
        console.show_table(make_engine_table(report.manifest.engines))
    console.show(_describe_report(report))
    return 0


def _read_layers(checkpoint: Path, text: str | None) -> list[int] | None:
    """The layers that --dense-fallback names, which takes knowing how many there are."""
    from quatrain.exporter.checkpoint import open_checkpoint
    from quatrain.exporter.expansion.layer_list import parse_layers

    if text is None:
        return None
    depth = open_checkpoint(checkpoint).spec.backbone.num_hidden_layers
    chosen = parse_layers(text, depth, flag="--dense-fallback")
    return [layer for layer, is_chosen in enumerate(chosen) if is_chosen]


def _format_plan(plan: "ExportPlan") -> str:
    return format_facts(
        f"{plan.family} decoder, {plan.parameters:,} parameters",
        {
            "weights": f"{format_bytes(plan.weight_bytes)} stored,"
            f" {format_bytes(plan.cpu_weight_bytes)} on a CPU",
            **describe_weights(plan.weights, plan.embeddings),
            **describe_feed_forward(plan.feed_forward, plan.feed_forward_bill),
            "dtype": plan.dtype,
            "max_seq_len": str(plan.max_seq_len),
            "max_batch": str(plan.max_batch),
            "prefill_chunk": str(plan.prefill_chunk),
            "max_deferred": str(plan.max_deferred),
            **describe_drafter(plan.drafter, plan.max_draft),
            "cache": describe_cache(plan.cache),
            "at the limits": f"{format_bytes(plan.kv_bytes_at_limit)} of cache",
            "graphs": ", ".join(plan.graphs),
            "engines": ", ".join(plan.targets) or "none (--target)",
            "self-test": "yes" if plan.self_test else "no",
        },
    )


def _describe_report(report: "ExportReport") -> str:
    manifest = report.manifest
    weights = "linked" if report.weights == "link" else "copied"
    engines = f", {len(manifest.engines)} engines" if manifest.engines else ""
    return f"{report.bundle}: {len(manifest.graphs)} graphs{engines}, weights {weights}"
