"""`quatrain inspect --activations`: runs the diagnosis, and shows it as tables and a plot."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.file_facts import show_comparisons
from quatrain.exporter.commands.path_flag import read_path
from quatrain.exporter.commands.plot_flag import add_plot_flag, check_plot, draw_plot
from quatrain.exporter.table import Table

if TYPE_CHECKING:
    from quatrain.exporter.diagnosis import ActivationReport, LayerReport
    from quatrain.runtime.requests import Prompt

__all__ = ["add_activation_flags", "inspect_activations", "refuse_stray_flags"]


def add_activation_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    group = parser.add_argument_group("diagnosis of a bank-top-k bundle")
    group.add_argument(
        "--activations",
        type=read_path,
        metavar="TEXT",
        help="run the bundle over this text, in UTF-8 (or token ids, a .npy of integers): which"
        " channels each layer picks, and the layer that, made dense, repairs late positions best",
    )
    group.add_argument(
        "--tokens",
        type=int,
        metavar="N",
        help="most tokens of the text; later positions are not looked at (default: 4096)",
    )
    add_plot_flag(group)


def refuse_stray_flags(args: argparse.Namespace) -> None:
    """Raise `RequestError` for flags that mean nothing without --activations."""
    from quatrain.runtime.errors import RequestError

    for flag, value in (("--tokens", args.tokens), ("--plot", args.plot)):
        if value is not None:
            raise RequestError(
                f"{flag} {value}", "no --activations", f"add --activations TEXT, or drop {flag}"
            )


def inspect_activations(args: argparse.Namespace, console: Console) -> int:
    """Run the diagnosis and show it."""
    from quatrain.exporter.diagnosis import diagnose_activations
    from quatrain.exporter.diagnosis.activation_plot import chart_activations
    from quatrain.exporter.diagnosis.diagnose import DEFAULT_TOKENS
    from quatrain.runtime.bundle_check import list_comparisons
    from quatrain.runtime.manifest import load_manifest

    check_plot(args.plot)
    report = diagnose_activations(
        args.path,
        _read_prompt(args.activations),
        tokens=DEFAULT_TOKENS if args.tokens is None else args.tokens,
        check_weights=args.check_weights,
        progress=console.make_progress(),
    )
    document: object = report
    if args.check_weights:
        compared = list_comparisons(load_manifest(args.path))
        show_comparisons(compared, console)
        document = {**asdict(report), "files_compared": compared}
    console.set_document(document)
    console.show_table(make_channel_table(report))
    console.show_table(make_position_table(report))
    draw_plot(args.plot, chart_activations(report), console)
    return 0


def make_channel_table(report: "ActivationReport") -> Table:
    """What each layer chooses."""
    columns = ["layer", "usage entropy", "never used", "always used"]
    notes = ["usage entropy: 1 where all channels are picked equally often"]
    if report.predictor_rank is None:
        notes.append("no predictor: the channels are picked by what they turned out to be")
    else:
        columns[1:1] = ["top-k found", "at the end"]
        notes.append(
            "top-k found: share of the channels largest by |SiLU(u) * v| that the predictor of rank"
            f" {report.predictor_rank} picks (a random pick: {report.chance:.1%}); at the end: in"
            " the last range of positions"
        )
    rows = [(str(layer.layer), *_describe_use(layer)) for layer in report.layers]
    return Table(
        f"Channels: {report.top_k} of every {report.bank_size}, {report.gate_mode} gate,"
        f" {report.tokens} tokens",
        columns,
        [[*row, *[""] * (len(columns) - len(row))] for row in rows],
        numeric=frozenset(columns),
        notes=notes,
    )


def make_position_table(report: "ActivationReport") -> Table:
    """Perplexity by position: as the bundle is, and with each layer dense."""
    buckets = [f"{bucket.first}-{bucket.last}" for bucket in report.buckets]
    rows = [("tokens", *(str(bucket.tokens) for bucket in report.buckets), "")]
    rows.append(("as it is", *(f"{bucket.perplexity:.3f}" for bucket in report.buckets), ""))
    for layer in report.layers:
        if layer.repair is None:
            cells = ["dense"] * len(buckets)
        else:
            cells = [f"{value:.3f}" for value in layer.repair.bucket_perplexity]
        mark = " <- best" if layer.layer == report.best_layer else ""
        rows.append((f"layer {layer.layer} dense", *cells, _describe_gain(layer) + mark))
    columns = ("", *buckets, "gain at the end")
    return Table(
        f"Perplexity by position, {report.windows} window{'s' * (report.windows > 1)} of at most"
        f" {report.window} tokens",
        columns,
        rows,
        numeric=frozenset(buckets),
        notes=_describe_suggestion(report),
    )


def _describe_use(layer: "LayerReport") -> tuple[str, ...]:
    use = layer.use
    if use is None:
        return ("dense",)
    found: tuple[str, ...] = ()
    if use.recall is not None and use.bucket_recall is not None:
        found = f"{use.recall:.1%}", f"{use.bucket_recall[-1]:.1%}"
    return *found, f"{use.usage_entropy:.3f}", str(use.never_used), str(use.always_used)


def _describe_gain(layer: "LayerReport") -> str:
    repair = layer.repair
    if repair is None:
        return ""
    error = "" if repair.gain_error is None else f" +- {repair.gain_error:.4f}"
    return f"{repair.gain:+.4f}{error}"


def _describe_suggestion(report: "ActivationReport") -> list[str]:
    notes = ["gain at the end: nats per token in the last range of positions, and standard error"]
    suggestion = report.suggestion
    if suggestion is None:
        return [*notes, "no single layer is worth making dense: no gain is beyond chance"]
    return [
        *notes,
        f"layer {suggestion.layer} dense takes the perplexity of the last range from"
        f" {suggestion.perplexity_before:.3f} to {suggestion.perplexity_after:.3f}; to have it:",
        f"quatrain export CHECKPOINT -o BUNDLE --dense-fallback {suggestion.dense_fallback}",
    ]


def _read_prompt(path: Path) -> "Prompt":
    from quatrain.exporter.text_file import read_text
    from quatrain.exporter.token_file import read_token_file

    return read_token_file(path) if path.suffix == ".npy" else read_text(path)
