"""Paths every test may need, and the golden bundle, exported once."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def nvium_checkpoint() -> Path:
    """The golden N-vium checkpoint: random weights, no tokenizer."""
    return ROOT / "tests" / "golden" / "nvium" / "checkpoint"


@pytest.fixture(scope="session")
def nvium_bundle(nvium_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden checkpoint as a bundle, without engines. Copy it before changing anything."""
    from quatrain.exporter import export_checkpoint

    bundle = tmp_path_factory.mktemp("nvium") / "bundle"
    export_checkpoint(nvium_checkpoint, bundle, weights="copy")
    return bundle
