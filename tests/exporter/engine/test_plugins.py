"""Plugins in engines: taken, not there, registered otherwise, or lost."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.exporter.engine.needs import needs_tensorrt

pytestmark = needs_tensorrt

ROOT = Path(__file__).parents[3]


def run_script(tmp_path: Path, *arguments: str) -> dict[str, str]:
    """Run plugin_script.py in a process of its own; what it printed."""
    script = ROOT / "tests" / "exporter" / "engine" / "plugin_script.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path / "bundle", *arguments],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout)
    return result


def test_a_registered_plugin_is_built_and_recorded(tmp_path):
    assert run_script(tmp_path, "1") == {"plugins": {"quatrain_test::Twice:1": 2}}


def test_without_the_plugin_its_function_is_built(tmp_path):
    assert run_script(tmp_path, "none") == {"plugins": {}}


def test_a_plugin_of_another_version_is_an_error(tmp_path):
    error = run_script(tmp_path, "2")

    assert "quatrain_test::Twice:1 for node node_layers.0.own" in error["asked"]
    assert "registered is quatrain_test::Twice:2" in error["found"]


def test_a_plugin_that_was_not_taken_is_an_error(tmp_path):
    error = run_script(tmp_path, "1", "register-late")

    assert "quatrain_test::Twice:1 for 2 nodes" in error["asked"]
    assert "something else at node_layers.0.own, node_layers.1.own" in error["found"]


def test_a_parser_that_would_abort_at_a_plugin_is_an_error(tmp_path):
    spec = importlib.util.find_spec("tensorrt_rtx_libs")
    assert spec is not None
    if Path(spec.origin or "").with_name("libtensorrt_rtx.so").exists():
        pytest.skip("here the parser finds its library by itself")

    error = run_script(tmp_path, "1", "import-first")

    assert "would abort the process" in error["found"]
