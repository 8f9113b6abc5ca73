"""`quatrain export`: a checkpoint becomes a bundle."""

import argparse
from typing import TYPE_CHECKING

from quatrain.exporter.commands.checkpoint_flags import add_checkpoint_flags
from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.drafter_facts import describe_drafter
from quatrain.exporter.commands.engine_table import count_engines, make_engine_table
from quatrain.exporter.commands.feed_forward_facts import describe_feed_forward
from quatrain.exporter.commands.memory_facts import describe_cache, describe_weights
from quatrain.exporter.commands.model_flags import add_limit_flags, add_model_flags, read_layers
from quatrain.exporter.commands.plugins_flag import add_plugins_flag
from quatrain.exporter.commands.quantization_facts import describe_codes
from quatrain.exporter.commands.stage_table import make_stage_table
from quatrain.exporter.commands.target_flag import add_target_flag
from quatrain.exporter.compared_reference import describe_reference
from quatrain.exporter.rare_collection import collecting_rarely
from quatrain.exporter.table import count_things, format_bytes, format_facts

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
    "verify",
    "quantize",
    "group_size",
    "head_bits",
)

# Those that `check_export` and `export_checkpoint` both take.
_PLACED = ("plugins", "weights", "overwrite")


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `export_checkpoint`."""
    add_checkpoint_flags(parser, made="bundle", metavar="BUNDLE")
    add_model_flags(parser)
    add_limit_flags(parser.add_argument_group("limits"))
    add_target_flag(parser, required=False)
    add_plugins_flag(parser)
    parser.add_argument(
        "--hash-weights",
        action="store_true",
        help="record the SHA-256 of linked weights, too, for `doctor` and `inspect --check-weights`"
        " to compare (default: their size, time and header)",
    )
    parser.add_argument(
        "--self-test",
        action=argparse.BooleanOptionalAction,
        help="record the first greedy tokens, to hold devices to (default: up to 1 GiB of weights)",
    )
    parser.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        help="hold the graphs to the checkpoint (`quatrain compare`); if they differ there is a"
        " report instead of a bundle (default: up to 1 GiB of weights)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an older bundle")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show what would be done, or why it would not, and write nothing",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Tell the settled plan, and carry it out unless it is a dry run."""
    with collecting_rarely():
        from quatrain.exporter.export import export_checkpoint, plan_export
        from quatrain.exporter.export_check import check_export

    placed = {name: getattr(args, name) for name in _PLACED}
    checked = {name: getattr(args, name) for name in ("targets", "quantize")}
    check_export(args.checkpoint, args.output, **placed, **checked)
    planned = {name: getattr(args, name) for name in _PLANNED}
    planned["dense_fallback"] = read_layers(args.checkpoint, args.dense_fallback)
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
        **placed,
        hash_weights=args.hash_weights,
        progress=console.make_progress(),
    )
    console.set_document(report)
    console.show_table(make_stage_table(report.stages))
    if report.manifest.engines:
        console.show_table(make_engine_table(report.manifest.engines))
    console.show(_describe_report(report))
    return 0


def _format_plan(plan: "ExportPlan") -> str:
    return format_facts(
        f"{plan.family} decoder, {plan.parameters:,} parameters",
        {
            "weights": f"{format_bytes(plan.weight_bytes)} stored,"
            f" {format_bytes(plan.cpu_weight_bytes)} on a CPU",
            **_describe_packing(plan),
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
            **({} if plan.room is None else {"room": plan.room}),
            "self-test": "yes" if plan.self_test else "no",
            "compared": _describe_comparison(plan),
        },
    )


def _describe_comparison(plan: "ExportPlan") -> str:
    if plan.unverified:
        return f"no: {plan.unverified}"
    return f"with {describe_reference(plan.quantize)}" if plan.quantize else "with the checkpoint"


def _describe_packing(plan: "ExportPlan") -> dict[str, str]:
    if plan.quantize is None:
        return {}
    return {
        "quantized": f"{describe_codes(plan.quantize, plan.group_size, plan.head_bits)}:"
        f" {format_bytes(plan.packed_bytes)} stored (what follows is without)"
    }


def _describe_report(report: "ExportReport") -> str:
    manifest = report.manifest
    weights = "linked" if report.weights == "link" else "copied"
    engines = f", {count_engines(manifest.engines)}" if manifest.engines else ""
    graphs = count_things(len(manifest.graphs), "graph")
    return f"{report.bundle}: {graphs}{engines}, weights {weights}"
