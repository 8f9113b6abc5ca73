"""`quatrain export`: its plan, its stages, and how it ends."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from tests.exporter.quatrain_process import QUATRAIN

from quatrain.exporter.cli import main
from quatrain.runtime.manifest import load_manifest


def test_a_dry_run_writes_nothing(
    nvium_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "bundle"
    words = ["export", str(nvium_checkpoint), "-o", str(output), "--dry-run", "--json"]
    assert main(words) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["family"], plan["max_batch"], plan["dtype"]) == ("nvium", 4, "bfloat16")
    assert (plan["embeddings"], plan["prefill_chunk"]) == ("graph", 256)
    assert [bill["embeddings"] for bill in plan["weights"]] == ["graph", "host"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["-o", "{there}"], "something is there already"),
        (["-o", "{there}", "--overwrite"], "it is not a bundle"),
        (["-o", "{there}/file/bundle"], "is a file"),
        (["-o", "{there}/bundle", "--plugins", "on"], "no target was given"),
        (["-o", "{there}/bundle", "--plugins", "often"], "neither a mode"),
        (["-o", "{there}/bundle", "--weights", "link", "--quantize", "int4"], "codes are not in"),
    ],
)
def test_a_dry_run_refuses_what_the_export_does(
    flags: list[str],
    found: str,
    nvium_checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    words = ["export", str(nvium_checkpoint), *(flag.format(there=tmp_path) for flag in flags)]
    told = []
    for mode in ([], ["--dry-run"]):
        assert main([*words, *mode]) == 1
        told.append(capsys.readouterr())
    assert found in told[0].err and told[1] == told[0]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_dry_run_shows_both_bills(
    nvium_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(nvium_checkpoint), "-o", str(tmp_path / "bundle"), "--dry-run"]
    assert main([*words, "--embeddings", "host"]) == 0
    shown = capsys.readouterr().out.splitlines()
    graph, host = (line for line in shown if "--embeddings" in line)
    assert "0 B on the host" in graph and "chosen" not in graph
    assert "65.5 kB on the host (1 table)" in host and "chosen" in host
    assert any("1.25 KiB a token" in line for line in shown)


def test_export_tells_its_plan_its_stages_and_its_result(
    nvium_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "bundle"
    words = ["export", str(nvium_checkpoint), "-o", str(output), "--weights", "copy"]
    assert main([*words, "--no-self-test", "--max-seq-len", "64"]) == 0
    captured = capsys.readouterr()
    assert "write graphs" in captured.out and "peak memory" in captured.out
    assert ["max_seq_len", "64"] in [line.split() for line in captured.err.splitlines()]
    assert load_manifest(output).limits.max_seq_len == 64
    assert main(words) == 1  # it is there already
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_export_and_leaves_nothing(
    number: signal.Signals, nvium_checkpoint: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out" / "bundle"
    with subprocess.Popen(
        [*QUATRAIN, "export", str(nvium_checkpoint), "-o", str(output)],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("write graphs"):
                process.send_signal(number)
                break
        rest = process.stderr.read()
        assert process.wait(60) == 128 + number
    assert "Traceback" not in rest
    assert list(output.parent.iterdir()) == []
