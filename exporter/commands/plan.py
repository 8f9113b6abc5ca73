"""`quatrain plan`: which GPUs have room for a model, and how fast their memory lets it decode."""

import argparse
from typing import TYPE_CHECKING, Any

from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.model_flags import add_limit_flags, add_model_flags, read_layers
from quatrain.exporter.commands.path_flag import read_path
from quatrain.exporter.commands.target_flag import add_target_flag
from quatrain.exporter.table import Table, format_bytes, format_facts

if TYPE_CHECKING:
    from quatrain.exporter.capacity import CapacityPlan, Needs, TargetFit

__all__ = ["configure_parser", "run"]

# The flags that say how a checkpoint would be exported; a bundle has been.
_EXPORTED = (
    "dtype",
    "max_seq_len",
    "max_batch",
    "prefill_chunk",
    "max_deferred",
    "embeddings",
    "dense_fallback",
    "drafter",
    "max_draft",
    "quantize",
    "group_size",
    "head_bits",
)

# What makes weights smaller, the least loss first.
_REMEDIES = (
    {"embeddings": "host"},
    {"quantize": "int8"},
    {"quantize": "int4"},
    {"quantize": "int4", "embeddings": "host"},
)
# Shorter sequences than this are no advice.
_FEWEST_TOKENS = 128


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "path", metavar="CHECKPOINT|BUNDLE", type=read_path, help="checkpoint or bundle folder"
    )
    add_target_flag(parser, required=False, verb="look at")
    add_model_flags(parser)
    add_limit_flags(parser.add_argument_group("limits of a checkpoint's export"))
    parser.set_defaults(**dict.fromkeys(_EXPORTED))  # so that one that is given is known by that
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
    impossible = [name for name in dict.fromkeys(args.targets) if not plan.is_possible(name)]
    for name in impossible:
        console.say(_advise(args, plan, name))
    return 1 if impossible else 0


def _open_model(args: argparse.Namespace) -> Any:
    from quatrain.exporter.capacity.model import open_planned
    from quatrain.exporter.errors import ExportError
    from quatrain.runtime.folder_kind import find_kind

    settings = {name: getattr(args, name) for name in _EXPORTED}
    given = {name: value for name, value in settings.items() if value is not None}
    if find_kind(args.path) != "bundle":
        if args.dense_fallback is not None:
            given["dense_fallback"] = read_layers(args.path, args.dense_fallback)
        return open_planned(args.path, **given)
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ExportError(
            f"a plan of the bundle {args.path} with {flags}",
            "that was settled when it was exported",
            "leave it out, or plan the checkpoint",
        )
    return args.path


def _describe_needs(plan: "CapacityPlan") -> str:
    needs, limits = plan.needs, plan.needs.limits
    codes = "" if needs.quantized is None else f", projections as {needs.quantized}"
    facts = {
        "weights": format_bytes(needs.weight_bytes) + codes,
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
        rows=[_make_row(fit, has_sparse, plan.needs.longest) for fit in plan.fits],
        numeric=frozenset(columns[2:3] + columns[4:]),
        notes=[
            "longest, batch: tokens and sequences an export has room for"
            f" (all: {_explain_longest(plan.needs)}); ms/token: what reading weights and cache"
            " takes at full bandwidth, which nothing that decodes one sequence beats",
            "sizes are arithmetic; activations and 0.7 GB for CUDA and TensorRT are estimates, for"
            " want of a GPU to measure on",
        ],
    )


def _explain_longest(needs: "Needs") -> str:
    if needs.longest == needs.positions:
        return "the model has no more positions"
    return "an ONNX file holds no more rotary tables"


def _make_row(fit: "TargetFit", has_sparse: bool, longest: int) -> list[str]:
    row = [
        fit.target,
        f"{fit.memory_gib} GiB",
        format_bytes(fit.needed_bytes),
        "yes" if fit.fits else "no",
        *(
            f"{tokens:,} (all)" if tokens == longest else f"{tokens:,}"
            for tokens in (fit.max_seq_len_alone, fit.max_seq_len_in_batch)
        ),
        f"{fit.max_batch:,}",
        f"{fit.floor_ms_short:.3g}",
        f"{fit.floor_ms_limit:.3g}",
    ]
    if has_sparse:
        row.append("" if fit.floor_ms_sparse is None else f"{fit.floor_ms_sparse:.3g}")
    return row


def _advise(args: argparse.Namespace, plan: "CapacityPlan", target: str) -> str:
    """What would fit, tried out."""
    limits, ways = plan.needs.limits, _list_ways(plan, target)
    if ways:
        return (
            f"{target} has no room for {limits.max_batch} sequences of {limits.max_seq_len}: export"
            f" with {' or '.join(ways)}"
        )
    lacks = f"{target} has no room for the weights ({format_bytes(plan.needs.weight_bytes)})"
    remedy = _find_remedy(args, target)
    if remedy is None:
        return f"{lacks}: take a larger GPU"
    return f"{lacks}: export with {remedy}"


def _list_ways(plan: "CapacityPlan", target: str) -> list[str]:
    """Limits that there is room for; none if the weights alone are too large."""
    best = max((f for f in plan.fits if f.target == target), key=lambda f: f.memory_gib)
    limits, ways = plan.needs.limits, []
    if best.max_seq_len_in_batch >= min(_FEWEST_TOKENS, limits.max_seq_len):
        ways.append(f"--max-seq-len {min(best.max_seq_len_in_batch, limits.max_seq_len)}")
    if best.max_batch:
        ways.append(f"--max-batch {min(best.max_batch, limits.max_batch)}")
    if not ways and best.max_seq_len_alone:
        ways.append(f"--max-batch 1 --max-seq-len {best.max_seq_len_alone}")
    return ways


def _find_remedy(args: argparse.Namespace, target: str) -> str | None:
    """Flags with which the weights have room, the first that asks for no other limits if any."""
    from quatrain.exporter.capacity import plan_capacity
    from quatrain.runtime.folder_kind import find_kind

    if find_kind(args.path) == "bundle":
        return None
    found = None
    for change in _REMEDIES:
        if any(getattr(args, name) not in (None, "graph") for name in change):
            continue
        changed = argparse.Namespace(**vars(args) | change)
        plan = plan_capacity(_open_model(changed), [target])
        flags = " ".join(f"--{name} {value}" for name, value in change.items())
        if plan.is_possible(target):
            return flags
        ways = _list_ways(plan, target)
        if ways and found is None:
            found = f"{flags} {ways[0]}"
    return found
