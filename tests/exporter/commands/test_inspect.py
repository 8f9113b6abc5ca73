"""`quatrain inspect`: what it shows of bundles and of checkpoints."""

import json
import os
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
    assert main(["inspect", str(nvium_bundle), "--json"]) == 0
    assert capsys.readouterr().out == (nvium_bundle / "manifest.json").read_text()
    assert main(["inspect", str(nvium_bundle)]) == 0
    shown = capsys.readouterr().out
    assert "nvium bundle" in shown and "segment_3" in shown
    assert "in the graph, 1 row a token" in shown
    assert "1.25 KiB a token in bfloat16" in shown
    assert any(line.split()[:4] == ["0-4", "tokens", "4", "16"] for line in shown.splitlines())


@pytest.mark.parametrize("hash_weights", [False, True])
def test_check_weights_says_what_was_compared_how(
    nvium_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], hash_weights: bool
) -> None:
    bundle, weights = tmp_path / "bundle", "weights/model.safetensors"
    source = shutil.copytree(nvium_checkpoint, tmp_path / "checkpoint")
    export_checkpoint(source, bundle, self_test=False, hash_weights=hash_weights)
    assert main(["inspect", str(bundle), "--check-weights", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    compared = document.pop("files_compared")
    assert document == json.loads((bundle / "manifest.json").read_text())
    assert compared.keys() == {record["path"] for record in document["files"]}
    assert compared.pop(weights) == ("sha256" if hash_weights else "size, time and header")
    assert set(compared.values()) == {"sha256"}
    flip_last_bit(bundle / weights)
    assert main(["inspect", str(bundle), "--check-weights"]) == hash_weights
    captured = capsys.readouterr()
    if hash_weights:
        assert "SHA-256" in captured.err
    else:
        line = f"  {weights}: size, time and header only (export with --hash-weights"
        assert line in captured.out and f"{len(compared)} files: SHA-256" in captured.out


def flip_last_bit(path: Path) -> None:
    """Another number in the file, but the same size, time and header."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


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
