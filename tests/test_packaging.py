"""What the wheel holds: every module of the tree, and nothing else."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("exporter", "plugins", "runtime")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """A wheel built from a copy of the tree, as `pip install .` would."""
    import shutil

    copy = tmp_path_factory.mktemp("tree") / "quatrain"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    for name in ("src", *FOLDERS):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    out = copy / "dist"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    run = subprocess.run([*command, str(copy)], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    (path,) = out.glob("*.whl")
    return ZipFile(path)


def test_the_wheel_holds_every_module_and_no_more(wheel: ZipFile) -> None:
    wanted = {
        f"quatrain/{path.relative_to(ROOT).as_posix()}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    wanted |= {f"quatrain/{folder}/py.typed" for folder in FOLDERS}
    wanted.add("quatrain/exporter/passage.txt")
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == wanted


def test_every_folder_with_modules_is_a_package(root: Path) -> None:
    for folder in FOLDERS:
        for path in (root / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").is_file(), path.parent


def test_the_wheel_installs_the_command(wheel: ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "quatrain = quatrain.exporter.cli:main" in wheel.read(name).decode()
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
