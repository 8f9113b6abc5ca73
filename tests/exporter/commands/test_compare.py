"""`quatrain compare`, as a user runs it."""

import json
from pathlib import Path
from typing import Any

import pytest

from quatrain.exporter.cli import main
from quatrain.exporter.decoder import rotary
from quatrain.exporter.export import export_checkpoint

FEW = ("--max-tokens", 12, "--decode-steps", 3)


def compare(*words: object) -> int:
    return main(["compare", *map(str, words)])


def read_document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_bundle_is_its_checkpoint(
    nvium_bundle: Path, nvium_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    assert compare(nvium_bundle, nvium_checkpoint, *FEW, "--layers", "--html", page) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1].startswith("passed: All ")
    assert "Checks\n" in captured.out and "layers.4.output" in captured.out
    assert "run the reference" in captured.err and str(page) in captured.err
    assert "plot-layers" in page.read_text() and "plot-exits" in page.read_text()


def test_json_is_the_documented_one(
    nvium_bundle: Path, nvium_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(nvium_bundle, nvium_checkpoint, *FEW, "--json") == 0
    document = read_document(capsys)
    assert document["passed"] is True
    for check in document["checks"]:
        assert check.keys() >= {"name", "passed", "value", "tolerance"}
    assert document["cases"][0]["lengths"][0] == 12
    assert document["layer_errors"] == []


def test_a_wrong_graph_exits_1_and_is_located(
    nvium_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    right = rotary._inverse_frequencies
    monkeypatch.setattr(rotary, "_inverse_frequencies", lambda backbone: right(backbone) * 1.1)
    bundle = tmp_path / "bundle"
    export_checkpoint(nvium_checkpoint, bundle, self_test=False, verify=False)
    assert compare(bundle, nvium_checkpoint, *FEW, "--json") == 1
    document = read_document(capsys)
    assert document["passed"] is False
    assert document["divergences"][0]["tensor"] == "key_cache.0"
    assert compare(bundle, nvium_checkpoint, *FEW) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out and "First divergence: key_cache.0" in out.splitlines()[-1]


def test_what_is_skipped_is_no_success(
    nvium_bundle: Path, nvium_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(nvium_bundle, nvium_checkpoint, *FEW, "--runner", "tensorrt", "--json") == 1
    document = read_document(capsys)
    assert (document["passed"], document["checks"]) == (False, [])
    (runner,) = document["runners"]
    assert (runner["name"], runner["status"]) == ("tensorrt", "skipped") and runner["reason"]
    words = (*FEW, "--runner", "tensorrt", "--runner", "fp32")
    assert compare(nvium_bundle, nvium_checkpoint, *words) == 0
    assert "skipped" in capsys.readouterr().out


def test_what_is_refused(
    nvium_bundle: Path, nvium_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some words")
    other = nvium_checkpoint.parents[1] / "hilp" / "checkpoint"
    for words, found in (
        ((nvium_bundle, other), "not the bundle's checkpoint"),
        ((nvium_checkpoint, nvium_checkpoint), "it is a checkpoint"),
        ((nvium_bundle, nvium_bundle), "it is a bundle"),
        ((nvium_bundle, nvium_checkpoint, "--runner", "torch"), "none of that name"),
        ((nvium_bundle, nvium_checkpoint, "--text", text), "no tokenizer"),
        ((nvium_bundle, nvium_checkpoint, "--max-tokens", 1), "at least 2"),
        ((nvium_bundle, nvium_checkpoint, "--decode-steps", -1), "number of steps"),
        ((nvium_bundle, nvium_checkpoint, "--html", tmp_path), "it is a folder"),
        ((nvium_bundle, nvium_checkpoint, "--html", tmp_path / "no" / "r.html"), "no folder"),
    ):
        assert compare(*words) == 1
        error = capsys.readouterr().err
        assert "asked: " in error and found in error


def test_a_report_takes_the_place_of_nothing(
    nvium_bundle: Path, nvium_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = nvium_bundle / "manifest.json"
    before = manifest.read_bytes()
    for page in (manifest, nvium_checkpoint / "report.html"):
        assert compare(nvium_bundle, nvium_checkpoint, *FEW, "--html", page) == 1
        assert "it would be among the files of" in capsys.readouterr().err
    assert manifest.read_bytes() == before
    assert not (nvium_checkpoint / "report.html").exists()


def test_a_quantized_bundle_is_said_to_be_held_to_rounded_weights(
    nvium_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, page = tmp_path / "bundle", tmp_path / "report.html"
    words = ["export", str(nvium_checkpoint), "-o", str(bundle), "--quantize", "int8"]
    rounded = "the checkpoint's weights rounded to int8 as in the bundle"
    assert main([*words, "--no-self-test", "--verify"]) == 0
    assert f"reference: {rounded}" in capsys.readouterr().err
    assert compare(bundle, nvium_checkpoint, *FEW, "--html", page) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("reference: "))
    assert rounded in line and "exact products" in line and "quatrain perplexity" in line
    assert "weights rounded to int8 as in the bundle" in page.read_text()
    assert compare(bundle, nvium_checkpoint, *FEW, "--json") == 0
    assert f"reference: {read_document(capsys)['reference']}" == line
    for command in ("inspect", "doctor"):
        assert main([command, str(bundle)]) == 0
        (shown,) = (x for x in capsys.readouterr().out.splitlines() if "compared " in x)
        assert "logits within" in shown and line in shown


def test_the_reference_of_other_bundles_is_the_checkpoint(
    nvium_bundle: Path, nvium_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(nvium_bundle, nvium_checkpoint, *FEW, "--json") == 0
    assert read_document(capsys)["reference"] == "the checkpoint's weights as they are"
