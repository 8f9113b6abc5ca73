"""The table that `gpu_check.py` prints."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["write_table"]

Row = Mapping[str, Any]

_COLUMNS = (
    "operator",
    "call",
    "type",
    "right",
    "us",
    "alternative",
    "its us",
    "faster",
    "GB/s",
    "of copy",
    "goal",
)


def write_table(report: Row) -> str:
    """The whole report as text: a head, one table, and what was not run."""
    rows = [_COLUMNS, *_list_right(report["right"]), *map(_list_timed, report["timed"])]
    rows += [_list_engine(row) for row in report["engines"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*_write_head(report), "", *lines, "", *_write_foot(report)])


def _write_head(report: Row) -> Iterator[str]:
    yield f"{report['device']['name']}, PyTorch {report['torch']}, Triton {report['triton']}"
    if "copy_gb_per_s" in report:
        yield (
            f"copy within the GPU's memory: {report['copy_gb_per_s']:.0f} GB/s; starting a CUDA "
            f"graph, which is in every time: {report['graph_start_microseconds']:.1f} us"
        )


def _list_right(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """A line an operator and type, and one for each case that is wrong."""
    for key in dict.fromkeys((row["operator"], row["dtype"]) for row in rows):
        of_key = [row for row in rows if (row["operator"], row["dtype"]) == key]
        worst = max((row["error"] or 0.0) / row["tolerance"] for row in of_key)
        num_right = sum(row["is_right"] for row in of_key)
        yield _pad(
            key[0],
            f"{len(of_key)} calls against the reference",
            key[1],
            f"{num_right}/{len(of_key)}",
            alternative=f"worst: {worst:.0%} of tolerance",
        )
        for row in of_key:
            if not row["is_right"]:
                yield _pad(key[0], row["call"], key[1], "WRONG", alternative=_name_error(row))


def _name_error(row: Row) -> str:
    if row["failure"] is not None:
        return "failed, see below"
    if row["error"] is None:
        return "not a number"
    return f"{row['error']:.2g} of at most {row['tolerance']:.2g}"


def _list_timed(row: Row) -> tuple[str, ...]:
    goal = (
        "" if row["goal"] is None else row["goal"] + (": met" if row["meets_goal"] else ": MISSED")
    )
    return (
        row["operator"],
        row["call"],
        row["dtype"],
        "WRONG" if not row["is_right"] else "-" if row["error"] is None else "yes",
        f"{row['microseconds']:.1f}",
        row["alternative"],
        f"{row['alternative_microseconds']:.1f}",
        f"{row['speedup']:.2f} x",
        f"{row['gb_per_s']:.0f}",
        f"{row['share_of_copy']:.0%}",
        goal,
    )


def _list_engine(row: Row) -> tuple[str, ...]:
    right = "yes" if row["is_right"] else "WRONG"
    if "error" in row:
        return _pad("engines", row["model"], "", right, alternative="failed, see below")
    plugins = ", ".join(f"{number} {name}" for name, number in row["plugins"].items())
    text = f"perplexity {row['tensorrt']:.4f}, ONNX Runtime's {row['onnxruntime']:.4f}; {plugins}"
    return _pad("engine", row["model"], "bfloat16", right, alternative=text)


def _pad(operator: str, call: str, dtype: str, right: str, alternative: str) -> tuple[str, ...]:
    return (operator, call, dtype, right, "", alternative, *[""] * (len(_COLUMNS) - 6))


def _write_foot(report: Row) -> Iterator[str]:
    yield from (f"Not run: {reason}." for reason in report["not_run"])
    yield from (f"Engines: {row['error']}" for row in report["engines"] if "error" in row)
    for row in report["right"]:
        if row["failure"] is not None:
            yield f"{row['operator']} {row['call']}, {row['dtype']}: {row['failure'][:500]}"
    verdict = "everything that was run is right" if report["is_right"] else "SOMETHING IS WRONG"
    yield f"{report['seconds']:.0f} s; {verdict}."
