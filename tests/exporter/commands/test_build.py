"""`quatrain build`: engines in a bundle."""

import json
import shutil
from pathlib import Path

import pytest

from quatrain.exporter.cli import main
from quatrain.runtime.manifest import load_manifest


@pytest.mark.slow
def test_build_adds_engines(
    nvium_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(nvium_bundle, bundle)
    assert main(["build", str(bundle), "--target", "a6000", "rtx3090", "--json"]) == 0
    captured = capsys.readouterr()
    engines = json.loads(captured.out)["engines"]
    graphs = {graph.name for graph in load_manifest(bundle).graphs}
    assert {(e["graph"], e["target"], e["sm"]) for e in engines} == {
        (graph, target, "8.6") for graph in graphs for target in ("a6000", "rtx3090")
    }
    assert "peak memory" in captured.err
    assert main(["inspect", str(bundle)]) == 0
    assert "rtx3090" in capsys.readouterr().out
