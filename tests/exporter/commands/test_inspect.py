"""`quatrain inspect`: what it shows of bundles and of checkpoints."""

import json
import shutil
from pathlib import Path

import pytest
from tests.exporter.checkpoint.folders import BACKBONE, random_tensors, write_checkpoint

from quatrain.exporter.cli import main
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.spec import DecoderSpec, Streams


def test_inspect_prints_the_manifest_of_a_bundle(
    nvium_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(nvium_bundle), "--json", "--check-weights"]) == 0
    captured = capsys.readouterr()
    assert captured.out == (nvium_bundle / "manifest.json").read_text()
    assert "every file" in captured.err
    assert main(["inspect", str(nvium_bundle)]) == 0
    shown = capsys.readouterr().out
    assert "nvium bundle" in shown and "segment_3" in shown
    assert "in the graph, 1 row a token" in shown
    assert "1.25 KiB a token in bfloat16" in shown
    assert any(line.split()[:4] == ["0-4", "tokens", "4", "16"] for line in shown.splitlines())


def test_inspect_shows_streams_and_embeddings_on_the_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = random_tensors(DecoderSpec(BACKBONE, streams=Streams(4)))
    source = write_checkpoint(tmp_path / "checkpoint", tensors, scale_seq_times=3)
    assert main(["inspect", str(source)]) == 0
    shown = capsys.readouterr().out
    assert "384 B a token: 4 rows of 96 B" in shown
    assert "6.1 kB on the host (4 tables)" in shown
    bundle = tmp_path / "bundle"
    export_checkpoint(source, bundle, embeddings="host", self_test=False)
    assert main(["inspect", str(bundle)]) == 0
    shown = capsys.readouterr().out
    assert "on the host, 4 rows a token: 4 tables" in shown
    assert any(line.split()[:3] == ["0-2", "rows", "2"] for line in shown.splitlines())


def test_inspect_names_weights_that_are_not_finite(
    nvium_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "checkpoint"
    shutil.copytree(nvium_checkpoint, broken)
    data = bytearray((broken / "model.safetensors").read_bytes())
    data[-2:] = b"\xff\x7f"  # a NaN in bfloat16
    (broken / "model.safetensors").write_bytes(data)
    assert main(["inspect", str(broken)]) == 0
    assert main(["inspect", str(broken), "--check-weights"]) == 1
    assert "1 NaN, 0 Inf" in capsys.readouterr().out
    assert main(["inspect", str(broken), "--check-weights", "--json"]) == 1
    (bad,) = json.loads(capsys.readouterr().out)["bad_weights"]
    assert bad["num_nan"] == 1
