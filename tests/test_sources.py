"""What every source file must be: small, documented, and free of anybody's machine."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("exporter", "plugins", "runtime")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40
VAGUE_NAMES = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py"}
# Spelled apart, so that this file passes its own test.
MACHINE_PATH = re.compile(r"(?<![\w.])/" + r"(?:home|root|work|Users|mnt|opt)/")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def list_project_files() -> list[Path]:
    """The text files of the project: those git knows or would add."""
    run = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    suffixes = {".py", ".toml", ".md", ".txt", ".yaml", ".json", ".sh", ""}
    paths = [ROOT / name for name in run.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and path.suffix in suffixes]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_is_small_and_documented(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES
    assert path.name not in VAGUE_NAMES
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "no module docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            # A kernel is one function: what it calls is compiled into it, and takes all it has.
            is_kernel = path.name == "kernel.py"
            assert is_kernel or lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


def test_no_file_names_a_machine() -> None:
    for path in list_project_files():
        found = MACHINE_PATH.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{name_of(path)}: {found and found.group()}"
