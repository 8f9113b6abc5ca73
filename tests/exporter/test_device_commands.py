"""Commands on a device that has what `pip install .` brings, and nothing of the extras."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.quatrain_process import QUATRAIN

ABSENT = ("onnx", "onnx_ir", "onnxscript", "ml_dtypes", "yaml", "rich", "polygraphy", "triton")
HIDING = f"""
import sys
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] in {ABSENT}
        return None if hidden else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Hiding(f) if hasattr(f, "find_spec") else f for f in sys.meta_path]
"""


@pytest.fixture
def device(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python that finds no extras, nor does what it starts."""
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def run(device: dict[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    command = [*QUATRAIN, *map(str, words)]
    return subprocess.run(command, env=device, capture_output=True, text=True, check=False)


def test_the_extras_are_hidden(device: dict[str, str]) -> None:
    command = [sys.executable, "-c", "import onnx"]
    done = subprocess.run(command, env=device, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "No module named 'onnx'" in done.stderr


@pytest.mark.parametrize("words", [("inspect", "--check-weights"), ("doctor",)])
def test_a_bundle_is_inspected(
    device: dict[str, str], nvium_bundle: Path, words: tuple[str, ...]
) -> None:
    done = run(device, words[0], nvium_bundle, *words[1:])
    assert (done.returncode, done.stdout != "") == (0, True), done.stderr


def test_bench_counts_no_bytes_and_says_so(device: dict[str, str], nvium_bundle: Path) -> None:
    few = ("--prompt-tokens", 2, "--new-tokens", 2, "--repeats", 1, "--warm-ups", 0)
    done = run(device, "bench", nvium_bundle, *few)
    assert done.returncode == 0, done.stderr
    assert "bytes read for a token are not counted" in done.stdout
    assert "read/token" not in done.stdout
    document: dict[str, Any] = json.loads(run(device, "bench", nvium_bundle, *few, "--json").stdout)
    assert document["runs"][0]["bytes_per_token"] is None


@pytest.mark.parametrize("command", ["plan", "inspect", "compare"])
def test_what_needs_an_extra_names_it(
    device: dict[str, str], nvium_bundle: Path, nvium_checkpoint: Path, command: str
) -> None:
    folders = {"plan": [nvium_bundle], "compare": [nvium_bundle, nvium_checkpoint]}
    done = run(device, command, *folders.get(command, [nvium_checkpoint]))
    assert done.returncode == 1
    assert "is not installed" in done.stderr and "quatrain[export]" in done.stderr
