"""Polygraphy's own tools read what is written, run the graphs as they are, and judge them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from polygraphy.comparator import Comparator, RunResults
from polygraphy.json import load_json
from tests.exporter.comparison.bundles import export, find_checkpoint
from tests.exporter.comparison.mutations import mutate, swap_gate_and_up

from quatrain.exporter.comparison import compare_bundle
from quatrain.exporter.comparison.polygraphy_runner import (
    BundleRunner,
    ReferenceRunner,
    TableCompareFunc,
)
from quatrain.exporter.errors import ComparisonError


def polygraphy(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run its command line."""
    code = "import sys; from polygraphy.tools import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "POLYGRAPHY_AUTOINSTALL_DEPS": "0"},
    )


@pytest.fixture(scope="module")
def bundle(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(root, "hilp", tmp_path_factory.mktemp("hilp") / "bundle")


@pytest.fixture(scope="module")
def saved(root: Path, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    comparison = compare_bundle(
        bundle,
        find_checkpoint(root, "hilp"),
        runners=["fp32", "deployment"],
        max_tokens=12,
        decode_steps=3,
        save_polygraphy=folder,
    )
    assert comparison.passed
    return folder


def test_results_are_in_its_format(saved: Path) -> None:
    inputs = load_json(str(saved / "inputs.json"))
    assert [feed["token_ids"].shape for feed in inputs] == [(3, 12), (1, 12), (1, 4)]
    reference = RunResults.load(str(saved / "fp32.reference.json"))
    results = RunResults.load(str(saved / "fp32.json"))
    deployed = RunResults.load(str(saved / "deployment.json"))
    expected, found, rounded = (
        dict(r)[n]
        for r, n in zip(
            (reference, results, deployed), ("fp32.reference", "fp32", "deployment"), strict=True
        )
    )
    assert len(expected) == len(found) == 3
    assert set(expected[0]) == set(found[0]) >= {"logits", "key_cache.0", "draft.1.state"}
    np.testing.assert_allclose(found[0]["logits"], expected[0]["logits"], atol=1e-4)
    assert np.abs(rounded[0]["logits"] - expected[0]["logits"]).max() > 1e-4


def test_it_judges_saved_results_again(saved: Path) -> None:
    run = polygraphy(
        "run", "--load-outputs", saved / "fp32.reference.json", saved / "fp32.json",
        "--atol", "1e-4", "--rtol", "0",
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Passed: 3/3 iterations" in run.stdout
    check = ["check", "accuracy", str(saved / "deployment.accuracy.json")]
    check += ["--check-error-stat", "max", "--rtol", "0", "--atol"]
    loose = polygraphy(*check, "0.1")
    assert loose.returncode == 0, loose.stdout + loose.stderr
    strict = polygraphy(*check, "1e-7")
    assert (strict.returncode, "FAILED" in strict.stdout + strict.stderr) == (1, True)


def test_it_runs_and_inspects_graphs_as_they_are(bundle: Path, saved: Path) -> None:
    graph = bundle / "decoder.cpu.float32.onnx"
    run = polygraphy(
        "run", graph, "--onnxrt", "--load-inputs", saved / "decoder.inputs.json",
        "--load-outputs", saved / "decoder.outputs.json", "--atol", "1e-5",
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Passed: 3/3 iterations" in run.stdout
    inspected = polygraphy("inspect", "model", graph)
    assert inspected.returncode == 0, inspected.stdout + inspected.stderr
    assert "attention_mask [dtype=bool, shape=('batch', 1, 'rows', 'length')]" in inspected.stdout


def test_a_graph_with_our_operators_runs_in_it(root: Path, tmp_path: Path) -> None:
    bundle = export(root, "nvium", tmp_path / "bundle")
    compare_bundle(
        bundle,
        find_checkpoint(root, "nvium"),
        max_tokens=8,
        decode_steps=2,
        save_polygraphy=tmp_path / "saved",
    )
    run = polygraphy(
        "run", bundle / "segment_0.cpu.float32.onnx", "--onnxrt",
        "--load-inputs", tmp_path / "saved" / "segment_0.inputs.json",
        "--load-outputs", tmp_path / "saved" / "segment_0.outputs.json", "--atol", "1e-5",
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


def test_its_comparator_runs_our_runners(root: Path, bundle: Path, tmp_path: Path) -> None:
    checkpoint = find_checkpoint(root, "hilp")
    broken = mutate(bundle, tmp_path / "broken", swap_gate_and_up(1))
    feed = {
        "token_ids": np.random.default_rng(0).integers(256, size=(2, 12)),
        "lengths": np.array([12, 7]),
    }
    for candidate, is_fine in ((bundle, True), (broken, False)):
        runners = [ReferenceRunner(checkpoint), BundleRunner(candidate, chunk=5, decode_steps=2)]
        results = Comparator.run(runners, data_loader=[feed])
        accuracy = Comparator.compare_accuracy(results, compare_func=TableCompareFunc())
        assert bool(accuracy) is is_fine


def test_a_folder_that_cannot_be(root: Path, bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ComparisonError, match="write results to"):
        compare_bundle(
            bundle, find_checkpoint(root, "hilp"), save_polygraphy=tmp_path / "file" / "folder"
        )


def test_a_disk_that_fills_up_leaves_whole_files_only(
    root: Path, bundle: Path, tmp_path: Path
) -> None:
    limited = (
        "import resource, sys; from quatrain.exporter.cli import main;"
        " resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        " sys.exit(main(sys.argv[1:]))"
    )
    folder = tmp_path / "saved"
    words = ["compare", bundle, find_checkpoint(root, "hilp"), "--max-tokens", "12"]
    words += ["--save-polygraphy", folder]
    run = subprocess.run(
        [sys.executable, "-c", limited, *map(str, words)], capture_output=True, text=True
    )
    assert run.returncode == 1
    asked, found, fix = run.stderr.splitlines()[-3:]
    path = folder / "fp32.reference.json"
    assert asked == f"asked: write results to {path} (--save-polygraphy)"
    assert found == "found: File too large" and "with room" in fix
    assert os.listdir(folder) == ["inputs.json"]
    load_json(str(folder / "inputs.json"))
