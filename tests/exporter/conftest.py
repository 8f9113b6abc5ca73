"""What something is fitted to in tests of sparsification and drafting."""

from pathlib import Path

import numpy as np
import pytest
from tests.exporter.checkpoint.folders import write_source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A dense checkpoint."""
    return write_source(tmp_path / "dense")


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    """A text of 330 token ids: 20 windows of 16, and some more."""
    path = tmp_path / "ids.npy"
    np.save(path, np.random.default_rng(1).integers(0, 48, 330).astype(np.int32))
    return path
