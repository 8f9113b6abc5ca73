"""The NumPy reference shares no code with what it is there to judge."""

import ast
from pathlib import Path

import pytest

# What each package of ours may import of ours; `spec` and `checkpoint` both sides share.
ALLOWED = {
    "reference": {"exporter.reference", "exporter.checkpoint", "exporter.spec", "runtime.errors"},
    "checkpoint": {
        "exporter.checkpoint",
        "exporter.spec",
        "exporter.errors",
        "exporter.progress",
        "runtime.errors",
        "runtime.folder_kind",
    },
    "spec": {"exporter.spec", "exporter.errors"},
}


def list_imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
        assert not (isinstance(node, ast.Call) and "import_module" in ast.dump(node.func))
    return names


@pytest.mark.parametrize("package", ALLOWED)
def test_imports(root: Path, package: str) -> None:
    files = sorted((root / "exporter" / package).rglob("*.py"))
    assert files
    for path in files:
        for name in list_imports(path):
            if name.split(".")[0] == "quatrain":
                assert ".".join(name.split(".")[1:3]) in ALLOWED[package], f"{path.name}: {name}"
