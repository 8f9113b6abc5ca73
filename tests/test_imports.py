"""Who may import what: the folders, the heavy packages, and what an import costs."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("exporter", "plugins", "runtime")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

OURS = {
    "exporter": {"exporter", "plugins", "runtime"},
    "plugins": {"plugins"},
    "runtime": {"runtime"},
}

# The one module through which a device gets at our TensorRT plugins, and who asks for it.
PLUGINS_ON_A_DEVICE = ("runtime/engine_plugins.py", "quatrain.plugins.registry")

# A heavy package and the files that may import it (nobody else, not even inside a function).
HEAVY = {
    "cuda": ("plugins/cuda_launcher.py", "runtime/tensorrt_session.py"),
    "font_source_sans_pro": ("exporter/charts/png.py",),
    "onnx": ("exporter/*",),
    "onnx_ir": ("exporter/*", "plugins/*/body.py", "plugins/*/selection.py"),
    "onnxruntime": ("runtime/onnxruntime_session.py",),
    "onnxscript": ("exporter/*", "plugins/*/body.py", "plugins/*/selection.py"),
    "polygraphy": (
        "exporter/comparison/polygraphy_files.py",
        "exporter/comparison/polygraphy_runner.py",
        "exporter/engine/tensorrt_adapter.py",
    ),
    "resvg_py": ("exporter/charts/png.py",),
    "rich": ("exporter/table.py",),
    "safetensors": (),
    "tensorrt": ("exporter/engine/tensorrt_adapter.py", "runtime/tensorrt_session.py"),
    "tensorrt_rtx": ("exporter/engine/tensorrt_adapter.py", "runtime/tensorrt_session.py"),
    "torch": (),
    "transformers": (),
    "triton": ("plugins/*/kernel.py", "plugins/compiler.py"),
    "yaml": ("exporter/checkpoint/*",),
}

# What a device has: the runtime runs with these, and imports nothing else but its two backends.
DEVICE_PACKAGES = {"msgspec", "numpy", "tokenizers"}
BACKENDS = {"cuda", "onnxruntime", "tensorrt", "tensorrt_rtx"}

# What must not be loaded by importing a package, by the package.
LIGHT = {
    "quatrain.plugins": {"numpy", "onnx", "onnx_ir", "onnxscript"},
    "quatrain.plugins.registry": {"msgspec", "onnx", "onnx_ir", "onnxscript"},
    "quatrain.runtime": {"onnx", "onnx_ir", "onnxscript", "onnxruntime"},
    "quatrain.exporter": {"numpy", "onnx", "onnx_ir", "onnxscript", "onnxruntime"},
    "quatrain.exporter.cli": {"numpy", "msgspec", "tokenizers", "onnx", "onnxruntime", "rich"},
}

# What an export loads only if it is asked to try a bundle out, or to build engines into it.
LEFT_OUT_OF_AN_EXPORT = {
    "quatrain.exporter.capacity",
    "quatrain.exporter.charts",
    "quatrain.exporter.comparison",
    "quatrain.exporter.engine.engines",
    "quatrain.exporter.expansion",
    "quatrain.exporter.reference",
    "quatrain.exporter.self_test",
    "quatrain.exporter.sparsification",
    "quatrain.exporter.verification",
    "onnxruntime",
    "polygraphy",
    "rich",
    "safetensors",
    "tensorrt",
    "tensorrt_rtx",
    "torch",
    "transformers",
    "triton",
    "yaml",
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), name_of(path))


def iter_imports(tree: ast.Module) -> Iterator[str]:
    """Every module imported anywhere in the file, `importlib.import_module` of a literal too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and "import_module" in ast.dump(node.func):
            yield from (a.value for a in node.args if isinstance(a, ast.Constant))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_file_imports_only_what_its_folder_may(path: Path) -> None:
    allowed = OURS[path.relative_to(ROOT).parts[0]]
    for name in iter_imports(parse(path)):
        top, _, rest = name.partition(".")
        assert top not in FOLDERS, f"import quatrain.{top}, not {top}"
        if top == "quatrain":
            is_plugin = (name_of(path), name.rpartition(".")[0]) == PLUGINS_ON_A_DEVICE
            assert rest.partition(".")[0] in allowed or is_plugin, name
        elif top in HEAVY:
            assert any(fnmatch(name_of(path), pattern) for pattern in HEAVY[top]), name


@pytest.mark.parametrize("path", sorted((ROOT / "runtime").rglob("*.py")), ids=name_of)
def test_the_runtime_needs_only_what_a_device_has(path: Path) -> None:
    for name in iter_imports(parse(path)):
        top = name.partition(".")[0]
        assert top in {"quatrain", *DEVICE_PACKAGES, *BACKENDS, *sys.stdlib_module_names}, name


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_an_init_holds_only_docstring_imports_and_names(path: Path) -> None:
    if path.name != "__init__.py":
        return
    lazy = path.parent.name == "exporter"  # it imports on first use: a table and one function
    kinds = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign)
    for node in parse(path).body:
        assert isinstance(node, (*kinds, ast.If, ast.FunctionDef) if lazy else kinds)


def list_loaded(code: str) -> set[str]:
    """The packages that running `code` loads, beyond those that any Python here starts with."""
    show = "print(*{name.partition('.')[0] for name in sys.modules})"
    runs = [
        subprocess.run(
            [sys.executable, "-c", f"import sys\n{text}\n{show}"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        for text in (code, "")
    ]
    return set(runs[0].stdout.split()) - set(runs[1].stdout.split())


@pytest.mark.parametrize("module", LIGHT)
def test_importing_a_package_is_light(module: str) -> None:
    always = {"cuda", "polygraphy", "tensorrt", "tensorrt_rtx", "torch", "transformers", "triton"}
    assert not list_loaded(f"import {module}") & (LIGHT[module] | always | {"yaml"})


def test_an_export_loads_no_more_than_it_needs(tmp_path: Path) -> None:
    checkpoint = Path(__file__).parent / "golden" / "hidden_decoding" / "checkpoint"
    words = ["export", str(checkpoint), "-o", str(tmp_path / "b"), "--no-verify", "--no-self-test"]
    code = (
        f"import sys\nfrom quatrain.exporter.cli import main\nassert main({words}) == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(run.stderr.splitlines()[-1].split())
    assert "onnx_ir" in loaded
    assert loaded & LEFT_OUT_OF_AN_EXPORT == set()


def test_the_definitions_of_plugins_need_only_what_a_device_has() -> None:
    code = (
        "from quatrain.plugins.registry import DEFINITIONS, load_definition\n"
        "for name in DEFINITIONS: assert load_definition(name).operator.name == name"
    )
    assert not list_loaded(code) & set(HEAVY)


def test_every_exporter_name_can_be_imported() -> None:
    import quatrain.exporter

    for name in quatrain.exporter.__all__:
        assert getattr(quatrain.exporter, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = quatrain.exporter.nothing  # type: ignore[attr-defined]
