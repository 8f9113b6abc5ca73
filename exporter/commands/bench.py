"""`quatrain bench`: how fast bundles are, and what they need."""

import argparse
from typing import TYPE_CHECKING

from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.llm_flags import (
    add_backend_flags,
    add_draft_flag,
    add_session_cache_flag,
)
from quatrain.exporter.commands.path_flag import read_path
from quatrain.exporter.commands.plot_flag import add_plot_flag, check_plot, draw_plot
from quatrain.exporter.table import Table, format_bytes

if TYPE_CHECKING:
    from quatrain.exporter.bench import BenchReport, BenchRun, Spread

__all__ = ["configure_parser", "run"]


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the flags: those of `bench_bundles` and `BenchSetting`."""
    parser.add_argument(
        "bundles",
        metavar="BUNDLE",
        type=read_path,
        nargs="+",
        help="folders `quatrain export` wrote",
    )
    parser.add_argument(
        "--baseline",
        type=read_path,
        metavar="BUNDLE",
        help="the one that ratios are over (default: the first)",
    )
    parser.add_argument(
        "--text",
        type=read_path,
        metavar="FILE",
        help="UTF-8 text that prompts are cut from, over again where it is too short (default: a"
        " passage that comes along)",
    )
    _add_setting_flags(parser)
    running = add_backend_flags(parser)
    add_session_cache_flag(running)
    add_draft_flag(running)
    output = parser.add_argument_group("output")
    output.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    add_plot_flag(output)


def _add_setting_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "what to run",
        "Decoding is greedy and goes on after EOS. A model with exits draws the exit of each token"
        " (as --routing sample of generate).",
    )
    group.add_argument(
        "--prompt-tokens",
        type=int,
        nargs="+",
        default=[128],
        metavar="N",
        help="tokens of prompt, one or several numbers (default: 128)",
    )
    for flag, default, text in (
        ("--new-tokens", 64, "tokens to generate"),
        ("--batch", 1, "sequences generated together"),
        ("--repeats", 5, "rounds that count"),
        ("--warm-ups", 1, "rounds before them that do not"),
    ):
        group.add_argument(
            flag, type=int, default=default, metavar="N", help=f"{text} (default: {default})"
        )


def run(args: argparse.Namespace, console: Console) -> int:
    """Measure, and show a row a run."""
    from quatrain.exporter.bench import BenchSetting, bench_bundles
    from quatrain.exporter.bench.plot import chart_report
    from quatrain.runtime.errors import RequestError

    if args.markdown and console.is_json:
        raise RequestError(
            "a benchmark as Markdown and as JSON (--markdown --json)",
            "either would be all that is printed",
            "leave one of them out",
        )
    check_plot(args.plot)
    setting = BenchSetting(
        prompt_tokens=tuple(args.prompt_tokens),
        new_tokens=args.new_tokens,
        batch=args.batch,
        threads=args.threads,
        repeats=args.repeats,
        warm_ups=args.warm_ups,
        backend=args.backend,
        draft=args.draft,
        session_cache=args.session_cache,
    )
    report = bench_bundles(
        args.bundles, setting, baseline=args.baseline, text=args.text, say=console.say
    )
    console.set_document(report)
    table = _make_table(report)
    if args.markdown:
        console.show(_format_markdown(table))
    else:
        console.show_table(table)
    draw_plot(args.plot, chart_report(report), console)
    return 0


def _make_table(report: "BenchReport") -> Table:
    columns = {
        "bundle": [run.bundle for run in report.runs],
        "tokens": [f"{run.prompt_tokens}+{run.new_tokens}" for run in report.runs],
        "tokens/s": [f"{run.tokens_per_second:.1f}" for run in report.runs],
        "spread": [_format_spread(run.spreads["tokens_per_second"], 1) for run in report.runs],
        "ratio": [_format_ratio(run, "tokens_per_second") for run in report.runs],
        "first token": [f"{run.time_to_first_token_ms:.1f} ms" for run in report.runs],
        "p50": [f"{run.token_ms_p50:.2f} ms" for run in report.runs],
        "p95": [f"{run.token_ms_p95:.2f} ms" for run in report.runs],
        "read/token": [format_bytes(run.bytes_per_token) for run in report.runs],
        "memory": [format_bytes(run.peak_rss_bytes) for run in report.runs],
        "load": [f"{run.load_seconds:.2f} s" for run in report.runs],
        "work": [_describe_work(run) for run in report.runs],
    }
    left = {"bundle", "tokens", "work"}
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    return Table(
        title=f"{report.repeats} rounds in turns, batch {report.runs[0].batch},"
        f" {report.runs[0].backend}, threads: {report.threads or 'one a core'}",
        columns=list(shown),
        rows=list(zip(*shown.values(), strict=True)),
        numeric=frozenset(shown.keys() - left),
        notes=_list_notes(report),
    )


def _list_notes(report: "BenchReport") -> list[str]:
    versions = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    notes = [f"{versions}; {report.cpus} cores"]
    if report.load_average is not None:
        notes[0] += f", load {report.load_average:.1f} before"
        if report.load_average > 0.5 * report.cpus:
            notes.append("the machine was busy with something else: trust the ratios only")
    notes.append(_describe_decoding(report))
    if report.session_cache is not None:
        notes.append(
            f"sessions are kept in {report.session_cache} (--session-cache) if that is possible:"
            " opening from it takes less time and memory than without it, and than filling it"
        )
    if any(r.backend == "onnxruntime" and r.bytes_per_token is None for r in report.runs):
        notes.append(
            "bytes read for a token are not counted: the package onnx is not installed (pip install"
            " 'quatrain[export]')"
        )
    if report.baseline is not None:
        notes.append(f"ratios of tokens/s are over {report.baseline}, round by round")
    if len({run.family for run in report.runs}) < _count_bundles(report):
        agreed = zip(report.same_tokens, report.runs[:: _count_bundles(report)], strict=True)
        notes += [
            f"after {run.prompt_tokens} tokens all agree on the first {same} of {run.new_tokens}"
            for same, run in agreed
        ]
    return notes


def _describe_decoding(report: "BenchReport") -> str:
    routings = {run.routing for run in report.runs if run.routing is not None}
    exits = f", exits drawn (routing {', '.join(routings)})" if routings else ""
    return f"{report.decoding} decoding{exits}"


def _count_bundles(report: "BenchReport") -> int:
    return len({run.bundle for run in report.runs})


def _format_spread(spread: "Spread", digits: int) -> str:
    return f"{spread.min:.{digits}f} to {spread.max:.{digits}f}"


def _format_ratio(run: "BenchRun", name: str) -> str:
    if run.ratios is None:
        return ""
    spread = run.ratios[name]
    return f"{spread.median:.2f} ({_format_spread(spread, 2)})"


def _describe_work(run: "BenchRun") -> str:
    """What the family saves, in a few words."""
    facts = [] if run.quantized is None else [f"{run.quantized} weights"]
    if run.mean_depth is not None and run.exit_shares is not None:
        shares = " ".join(f"{share:.2f}" for share in run.exit_shares)
        facts.append(f"depth {run.mean_depth:.1f} (exits {shares})")
    if run.accepted_per_step is not None:
        facts.append(f"{run.accepted_per_step:.2f} tokens a step (draft {run.draft})")
    if run.feed_forward_share is not None:
        facts.append(f"{run.feed_forward_share:.0%} of the FFN")
    return ", ".join(facts)


def _format_markdown(table: Table) -> str:
    rule = ["--:" if column in table.numeric else "---" for column in table.columns]
    lines = [table.columns, rule, *table.rows]
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([f"{table.title}", "", *rows, "", *(f"- {note}" for note in table.notes)])
