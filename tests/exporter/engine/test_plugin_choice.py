"""--plugins: what it takes, what comes out, and what is said where no plugin can be built."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.engine.needs import needs_tensorrt

from quatrain.exporter.engine import plugin_choice
from quatrain.exporter.engine.engines import build_engines
from quatrain.exporter.engine.plugin_choice import PluginChoice, find_obstacle, parse_plugins
from quatrain.exporter.errors import BuildError
from quatrain.exporter.progress import Progress

ROOT = Path(__file__).parents[3]
ROUTER = "quatrain::ExitRouter:1"


@pytest.mark.parametrize(
    ("texts", "modes"),
    [
        ((), ("auto", "auto")),
        (("on",), ("on", "on")),
        (("off", "ExitRouter=on"), ("on", "off")),
        (("ExitRouter=on", "ExitRouter=off", "on"), ("off", "on")),
    ],
)
def test_modes_are_read(texts, modes):
    choice = parse_plugins(texts)
    assert (choice.get_mode("ExitRouter"), choice.get_mode("BankTopKFeedForward")) == modes
    assert isinstance(choice, PluginChoice)


@pytest.mark.parametrize("text", ["yes", "", "ExitRouter", "ExitRouter=", "Softmax=on", "=on="])
def test_what_is_no_mode_is_refused(text):
    with pytest.raises(BuildError, match=r"auto, on, off, or OPERATOR=MODE .*ExitRouter"):
        parse_plugins([text])


def test_what_stands_in_the_way_of_all_plugins(monkeypatch: pytest.MonkeyPatch):
    assert find_obstacle(["8.0", "8.6"], can_parse_plugins=True) is None
    assert "not compiled for SM 5.3" in (find_obstacle(["8.0", "5.3"], True) or "")
    assert "would abort the process" in (find_obstacle(["8.0"], False) or "")
    monkeypatch.setattr(plugin_choice, "has_triton", lambda: False)
    assert "pip install 'quatrain[kernels]'" in (find_obstacle(["8.0"], True) or "")


@pytest.fixture(scope="module")
def cases(nvium_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came out under each mode: plugin_modes_script.py, in a process of its own."""
    bundle = tmp_path_factory.mktemp("modes") / "bundle"
    shutil.copytree(nvium_bundle, bundle)
    script = ROOT / "tests" / "exporter" / "engine" / "plugin_modes_script.py"
    done = subprocess.run(
        [sys.executable, script, bundle],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_tensorrt
def test_a_mode_of_an_operator_that_the_model_does_not_have_is_told_of_and_builds(
    nvium_bundle: Path, tmp_path: Path
) -> None:
    bundle = shutil.copytree(nvium_bundle, tmp_path / "bundle")
    said: list[str] = []
    modes = ["off", "BankTopKFeedForward=on", "ExitRouter=off"]
    assert build_engines(bundle, ["a6000"], plugins=modes, progress=Progress(said.append))
    [told] = [line for line in said if "changes nothing" in line]
    assert told.startswith("--plugins BankTopKFeedForward=on ")


@needs_tensorrt
@pytest.mark.parametrize("mode", ["on", "auto"])
def test_plugins_are_taken(cases, mode):
    assert cases[mode] == {"plugins": {ROUTER: 1}, "said": []}


@needs_tensorrt
@pytest.mark.parametrize("mode", ["off", "ExitRouter=off"])
def test_bodies_are_taken(cases, mode):
    assert cases[mode] == {"plugins": {}, "said": []}


@needs_tensorrt
def test_what_has_no_kernel_is_a_body_aloud_or_an_error(cases):
    (line,) = cases["auto, refused"]["said"]
    assert cases["auto, refused"]["plugins"] == {}
    assert "ExitRouter: the function body, not the plugin: no kernel for this today (at " in line
    assert "no kernel for this today" in cases["on, refused"]["found"]
    assert "--plugins ExitRouter=off" in cases["on, refused"]["fix"]


@needs_tensorrt
def test_an_engine_is_dropped_if_its_kernels_cannot_be_compiled(cases):
    """TensorRT itself builds on without them."""
    assert cases["on, not compiled"]["found"] == "ExitRouter: ptxas is out of order"


@needs_tensorrt
def test_kernels_are_in_the_engine(cases):
    """For each of two profiles, and TensorRT stores a plugin's fields twice."""
    assert cases["on, built"]["plugins"] == {ROUTER: 1}
    assert cases["on, built"]["kernels"] == 4
    assert (cases["off, built"]["plugins"], cases["off, built"]["kernels"]) == ({}, 0)


@needs_tensorrt
def test_without_triton_bodies_are_built_and_the_reason_kept(
    nvium_bundle: Path, monkeypatch: pytest.MonkeyPatch
):
    from quatrain.exporter.engine.check import count_plugins
    from quatrain.exporter.engine.onnx_graph import OnnxGraph
    from quatrain.exporter.engine.parse import GraphParser
    from quatrain.exporter.engine.tensorrt_adapter import load_tensorrt
    from quatrain.exporter.progress import Progress
    from quatrain.runtime.manifest import load_manifest

    monkeypatch.setattr(plugin_choice, "has_triton", lambda: False)
    manifest = load_manifest(nvium_bundle)
    graph = manifest.graph("segment_0")

    def parse(mode: str) -> GraphParser:
        return GraphParser(
            load_tensorrt("tensorrt-rtx"),
            nvium_bundle,
            manifest,
            graph,
            OnnxGraph(nvium_bundle / graph.deployment.path),
            parse_plugins([mode]),
            Progress(),
        )

    parser = parse("auto")
    assert count_plugins(parser.run(["8.6"])) == {}
    assert "pip install" in parser.bodies["ExitRouter"]
    with pytest.raises(BuildError, match=r"pip install 'quatrain\[kernels\]'"):
        parse("on").run(["8.6"])
