"""`quatrain doctor`: the machine, and a bundle on it."""

import json
import shutil
from pathlib import Path

import pytest

from quatrain.exporter.cli import main
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
    path = next((bundle / "weights").iterdir())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert main(["doctor", str(bundle)]) == 1
    assert "SHA-256" in capsys.readouterr().err
