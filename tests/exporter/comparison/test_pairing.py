"""A bundle and a checkpoint that do not belong together are refused before anything runs."""

import json
import shutil
from pathlib import Path

import pytest

from quatrain.exporter import export_checkpoint
from quatrain.exporter.comparison.pairing import open_pair
from quatrain.exporter.errors import CheckpointError, ComparisonError
from quatrain.runtime.manifest import load_manifest


@pytest.fixture
def checkpoint(root: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    source = root / "tests" / "golden" / "hilp" / "checkpoint"
    return Path(shutil.copytree(source, tmp_path / "checkpoint"))


@pytest.fixture
def bundle(root: Path, tmp_path: Path) -> Path:
    export_checkpoint(
        root / "tests" / "golden" / "hilp" / "checkpoint",
        tmp_path / "bundle",
        weights="copy",
        self_test=False,
        verify=False,
    )
    return tmp_path / "bundle"


def test_the_same_weights_elsewhere_belong_to_it(bundle: Path, checkpoint: Path) -> None:
    opened = open_pair(bundle, load_manifest(bundle), checkpoint)
    assert opened.folder == checkpoint
    assert opened.spec.drafter is None, "the bundle was exported without one"


def test_other_settings(bundle: Path, checkpoint: Path) -> None:
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    config["rms_norm_eps"] = 0.25
    path.write_text(json.dumps(config))
    with pytest.raises(ComparisonError, match=r"backbone\.rms_norm_eps is 0\.25 there and"):
        open_pair(bundle, load_manifest(bundle), checkpoint)


def test_another_family(root: Path, bundle: Path) -> None:
    other = root / "tests" / "golden" / "nvium" / "checkpoint"
    with pytest.raises(ComparisonError, match="not the bundle's checkpoint"):
        open_pair(bundle, load_manifest(bundle), other)


def test_other_weights_of_the_same_shapes(bundle: Path, checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(ComparisonError, match=r"model\.safetensors holds other weights"):
        open_pair(bundle, load_manifest(bundle), checkpoint)


def test_no_checkpoint_at_all(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no such folder"):
        open_pair(bundle, load_manifest(bundle), tmp_path / "nothing")
