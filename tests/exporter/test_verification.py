"""An export is held to its checkpoint: what passes is recorded, what does not leaves a report."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quatrain.exporter import options, verification
from quatrain.exporter.cli import main
from quatrain.exporter.decoder import rotary
from quatrain.exporter.errors import ExportError
from quatrain.exporter.export import export_checkpoint, plan_export
from quatrain.runtime.errors import RequestError
from quatrain.runtime.manifest import load_manifest

GOLDEN = Path(__file__).parents[1] / "golden" / "nvium" / "checkpoint"


def export(output: Path, **settings: bool) -> None:
    export_checkpoint(GOLDEN, output, self_test=False, **settings)


@pytest.fixture
def wrong_rotary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every graph turns its queries and keys a little too fast."""
    right: Callable[..., np.ndarray] = rotary._inverse_frequencies
    monkeypatch.setattr(rotary, "_inverse_frequencies", lambda backbone: right(backbone) * 1.1)


def test_what_passes_is_recorded(tmp_path: Path) -> None:
    export(tmp_path / "bundle", verify=True)
    found = load_manifest(tmp_path / "bundle").verification
    assert found is not None
    assert (found.status, found.reason) == ("passed", "")
    assert "fp32" in found.runners and found.checks > 5
    assert found.logits_error is not None and 0 < found.logits_error < 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_wrong_graph_leaves_a_report_and_no_bundle(tmp_path: Path, wrong_rotary: None) -> None:
    output = tmp_path / "bundle"
    with pytest.raises(ExportError, match="the graphs are not the checkpoint") as caught:
        export(output, verify=True)
    assert "First divergence: key_cache.0 of fp32" in caught.value.found
    assert {path.name for path in tmp_path.iterdir()} == {
        "bundle-report.html",
        "bundle-report.json",
    }
    document = json.loads((tmp_path / "bundle-report.json").read_text())
    assert document["passed"] is False and document["bundle"] == str(output)
    assert document["layer_errors"] and document["divergences"][0]["layer"] == 0
    assert "Failed" in (tmp_path / "bundle-report.html").read_text()


def test_a_wrong_graph_replaces_no_bundle_and_exits_1(
    tmp_path: Path, wrong_rotary: None, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "bundle"
    words = ["export", str(GOLDEN), "-o", str(output), "--no-self-test"]
    assert main([*words, "--no-verify"]) == 0
    capsys.readouterr()
    before = (output / "manifest.json").read_bytes()
    assert main([*words, "--verify", "--overwrite", "--json"]) == 1
    captured = capsys.readouterr()
    assert "--no-verify" in json.loads(captured.out)["error"]["fix"]
    assert (output / "manifest.json").read_bytes() == before


def test_a_report_that_cannot_be_written_hides_nothing(
    tmp_path: Path, wrong_rotary: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RequestError("write", "the disk is full", "make room")

    monkeypatch.setattr(verification, "write_html", refuse)
    with pytest.raises(ExportError, match="the graphs are not the checkpoint") as caught:
        export(tmp_path / "bundle", verify=True)
    assert "the disk is full" in caught.value.fix
    assert list(tmp_path.iterdir()) == []


def test_what_is_skipped_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(tmp_path / "bundle", verify=False)
    found = load_manifest(tmp_path / "bundle").verification
    assert found is not None
    assert (found.status, found.reason) == ("skipped", "not asked for (--no-verify)")
    assert main(["inspect", str(tmp_path / "bundle")]) == 0
    assert "no: not asked for (--no-verify)" in capsys.readouterr().out


def test_the_plan_says_whether_it_will_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_export(GOLDEN, verify=True).unverified is None
    words = ["export", str(GOLDEN), "-o", "bundle", "--dry-run"]
    for flag, line in (
        ("--verify", "compared with the checkpoint"),
        ("--no-verify", "compared no: not asked for (--no-verify)"),
    ):
        assert main([*words, flag]) == 0
        assert line in [" ".join(shown.split()) for shown in capsys.readouterr().out.splitlines()]


def test_by_default_it_is_up_to_a_gibibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "larger than 1 GiB" in (plan_export(GOLDEN).unverified or "")  # see tests/conftest.py
    monkeypatch.setattr(options, "_VERIFY_MAX_BYTES", 1 << 30)
    assert plan_export(GOLDEN).unverified is None
    text = Path(options.__file__).read_text(encoding="utf-8")
    assert "_VERIFY_MAX_BYTES = 1 << 30" in text
