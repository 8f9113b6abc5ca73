"""`quatrain plan`: which GPUs have room for a model, and how fast their memory lets it decode."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.model_flags import add_limit_flags, add_model_flags, read_layers
from quatrain.exporter.commands.table import Table, format_bytes, format_facts
from quatrain.exporter.commands.target_flag import add_target_flag

if TYPE_CHECKING:
    from quatrain.exporter.capacity import CapacityPlan, TargetFit

__all__ = ["configure_parser", "run"]

# The flags that say how a checkpoint would be exported; a bundle has been.
_EXPORTED = {
    "dtype": None,
    "max_seq_len": None,
    "max_batch": 4,
    "prefill_chunk": None,
    "max_deferred": 16,
    "embeddings": "graph",
    "dense_fallback": None,
    "drafter": False,
    "max_draft": 8,
    "quantize": None,
    "group_size": 32,
}


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "path", metavar="CHECKPOINT|BUNDLE", type=Path, help="checkpoint or bundle folder"
    )
    add_target_flag(parser, required=False, verb="look at")
    add_model_flags(parser)
    add_limit_flags(parser.add_argument_group("limits of a checkpoint's export"))
    group = parser.add_argument_group("what decoding is expected to do")
    group.add_argument(
        "--exit-shares",
        type=float,
        nargs="+",
        metavar="X",
        help="share of the tokens at each exit, as `quatrain bench` measures (default: all at the"
        " last)",
    )
    group.add_argument(
        "--draft", type=int, default=0, metavar="N", help="tokens guessed in a round (default: 0)"
    )
    group.add_argument(
        "--accepted-per-step",
        type=float,
        default=1.0,
        metavar="X",
        help="tokens that a round gives, as `quatrain bench` measures (default: 1)",
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Show a row for each memory size; 1 if a target that was asked for has no room."""
    from quatrain.exporter.capacity import plan_capacity

    plan = plan_capacity(
        _open_model(args),
        args.targets,
        exit_shares=args.exit_shares,
        draft=args.draft,
        accepted_per_step=args.accepted_per_step,
    )
    console.set_document(plan)
    console.show(_describe_needs(plan))
    console.show_table(_make_table(plan))
    impossible = [name for name in args.targets if not plan.is_possible(name)]
    for name in impossible:
        console.say(_advise(plan, name))
    return 1 if impossible else 0


def _open_model(args: argparse.Namespace) -> Any:
    from quatrain.exporter.capacity.capacity import is_bundle
    from quatrain.exporter.capacity.model import open_planned
    from quatrain.exporter.errors import ExportError

    settings = {name: getattr(args, name) for name in _EXPORTED}
    if not is_bundle(args.path):
        settings["dense_fallback"] = read_layers(args.path, args.dense_fallback)
        return open_planned(args.path, **settings)
    changed = [name for name, default in _EXPORTED.items() if settings[name] != default]
    if changed:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise ExportError(
            f"a plan of the bundle {args.path} with {flags}",
            "that was settled when it was exported",
            "leave it out, or plan the checkpoint",
        )
    return args.path


def _describe_needs(plan: "CapacityPlan") -> str:
    needs, limits = plan.needs, plan.needs.limits
    facts = {
        "weights": format_bytes(needs.weight_bytes),
        "on the host": f"{format_bytes(needs.host_bytes)} of embedding tables",
        "cache": f"{format_bytes(needs.cache_bytes_per_token)} a token,"
        f" {format_bytes(needs.cache_bytes_per_token * needs.capacity * limits.max_batch)} for"
        f" {limits.max_batch} sequences of {limits.max_seq_len}",
        "activations": f"at most {format_bytes(needs.activation_bytes)}, estimated",
    }
    if not needs.host_bytes:
        del facts["on the host"]
    return format_facts(f"{needs.family} decoder in {needs.dtype}, on a GPU", facts)


def _make_table(plan: "CapacityPlan") -> Table:
    has_sparse = any(fit.floor_ms_sparse is not None for fit in plan.fits)
    columns = ["target", "memory", "needs", "fits", "longest alone", "longest in batch", "batch"]
    columns += ["ms/token at 128", "at the limit", *(["active only"] if has_sparse else [])]
    return Table(
        title="Targets",
        columns=columns,
        rows=[_make_row(fit, has_sparse) for fit in plan.fits],
        numeric=frozenset(columns[2:3] + columns[4:]),
        notes=[
            "longest, batch: tokens and sequences there is room for; ms/token: what reading weights"
            " and cache takes at full bandwidth, which nothing that decodes one sequence beats",
            "sizes are arithmetic; activations and 0.7 GB for CUDA and TensorRT are estimates, for"
            " want of a GPU to measure on",
        ],
    )


def _make_row(fit: "TargetFit", has_sparse: bool) -> list[str]:
    row = [
        fit.target,
        f"{fit.memory_gib} GiB",
        format_bytes(fit.needed_bytes),
        "yes" if fit.fits else "no",
        f"{fit.max_seq_len_alone:,}",
        f"{fit.max_seq_len_in_batch:,}",
        f"{fit.max_batch:,}",
        f"{fit.floor_ms_short:.3g}",
        f"{fit.floor_ms_limit:.3g}",
    ]
    if has_sparse:
        row.append("" if fit.floor_ms_sparse is None else f"{fit.floor_ms_sparse:.3g}")
    return row


def _advise(plan: "CapacityPlan", target: str) -> str:
    best = max((f for f in plan.fits if f.target == target), key=lambda f: f.memory_gib)
    limits = plan.needs.limits
    if best.max_seq_len_alone == 0 and plan.needs.activation_bytes > plan.needs.weight_bytes:
        return (
            f"{target} has no room for the activations of {limits.max_batch} x"
            f" {limits.prefill_chunk} tokens: export with a smaller --max-batch or --prefill-chunk"
        )
    if best.max_seq_len_alone == 0:
        return (
            f"{target} has no room for the weights ({format_bytes(plan.needs.weight_bytes)});"
            " --embeddings host takes the tables out of them, where the model has many"
        )
    if best.max_seq_len_in_batch == 0:
        return f"{target} has no room for a batch of {limits.max_batch}: export with --max-batch 1"
    return (
        f"{target} has no room for {limits.max_batch} sequences of {limits.max_seq_len}: export"
        f" with --max-seq-len {best.max_seq_len_in_batch // 8 * 8} or --max-batch"
        f" {max(1, best.max_batch)}"
    )
