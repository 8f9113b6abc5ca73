"""`quatrain doctor`: the machine, and a bundle on it."""

import json
import shutil
from pathlib import Path

import pytest

from quatrain.exporter.cli import main
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.targets import TARGETS


def test_doctor_reports_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [target["name"] for target in document["targets"]] == [t.name for t in TARGETS]
    assert document["bundle"] is None
    assert main(["doctor"]) == 0
    assert "Targets" in capsys.readouterr().out


def test_doctor_tests_a_bundle(
    nvium_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(nvium_bundle, bundle)
    assert main(["doctor", str(bundle)]) == 0
    out = capsys.readouterr().out
    assert "its self-test passes" in out and "compared with its checkpoint: no" in out
    num_files = len(json.loads((bundle / "manifest.json").read_text())["files"])
    assert f"\n  {num_files} files: SHA-256\n" in out
    path = next((bundle / "weights").iterdir())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert main(["doctor", str(bundle)]) == 1
    assert "SHA-256" in capsys.readouterr().err


def test_doctor_says_which_weights_it_did_not_read(
    nvium_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle"
    source = shutil.copytree(nvium_checkpoint, tmp_path / "checkpoint")
    export_checkpoint(source, bundle, self_test=False)
    assert main(["doctor", str(bundle)]) == 0
    assert "model.safetensors: size, time and header only (export" in capsys.readouterr().out
    assert main(["doctor", str(bundle), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["bundle"]
    assert found["files_compared"]["weights/model.safetensors"] == "size, time and header"
    assert found["reference"] == "the checkpoint's weights as they are"
