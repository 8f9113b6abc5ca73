"""`quatrain expand`: its flags, what it prints, and its errors."""

import json
from inspect import Parameter, signature
from pathlib import Path

import pytest
from tests.exporter.checkpoint.folders import write_dense

from quatrain.exporter import expand_checkpoint
from quatrain.exporter.cli import main, make_parser


def test_flags_are_the_parameters_of_expand_checkpoint() -> None:
    words = ["expand", "checkpoint", "-n", "2", "-o", "out"]
    flags = vars(make_parser(words).parse_args(words))
    parameters = signature(expand_checkpoint).parameters
    assert flags.keys() - {"json", "run", "command"} == parameters.keys() - {"progress"}
    optional = {n: p.default for n, p in parameters.items() if p.default is not Parameter.empty}
    for name in optional.keys() - {"progress"}:
        assert flags[name] == optional[name], name
    assert flags["num_streams"] == 2


def test_it_tells_streams_layers_parameters_and_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = write_dense(tmp_path / "dense"), tmp_path / "out"
    words = ["expand", str(source), "-n", "4", "-o", str(output), "--intra-stream", "0-1"]
    assert main([*words, "--weights", "copy"]) == 0
    captured = capsys.readouterr()
    shown = " ".join(captured.out.split())
    for fact in (
        f"{output}: 1 -> 4 streams",
        "intra-stream 0-1, cross-stream 2",
        "new tables 3, 4.6 kB written; the other weights are copied",
        "cache 96 B -> 384 B a token in 16 bits (x 4)",
    ):
        assert fact in shown
    assert "write tables" in captured.err


def test_json_is_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = write_dense(tmp_path / "dense"), tmp_path / "out"
    assert main(["expand", str(source), "-n", "2", "-o", str(output), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["checkpoint"] == str(output)
    assert (document["before"]["num_streams"], document["after"]["num_streams"]) == (1, 2)
    assert document["intra_stream"] == [False] * 3
    assert document["new_bytes"] == 48 * 16 * 2
    assert document["weights"] == "link"


def test_a_refusal_exits_1_in_three_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_dense(tmp_path / "dense")
    assert main(["expand", str(source), "-n", "1", "-o", str(tmp_path / "out")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.split(":")[0] for line in captured.err.splitlines()[-3:]] == [
        "asked",
        "found",
        "fix",
    ]
