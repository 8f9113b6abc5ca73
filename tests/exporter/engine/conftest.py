"""A bundle with one small decoder, to build engines of."""

import shutil
from pathlib import Path

import pytest
from tests.exporter.engine.engine_bundle import write_bundle


@pytest.fixture(scope="session")
def plain(tmp_path_factory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("plain") / "bundle")


@pytest.fixture
def bundle(plain, tmp_path) -> Path:
    return Path(shutil.copytree(plain, tmp_path / "bundle"))
