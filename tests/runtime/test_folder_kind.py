"""Checkpoints and bundles are told apart by their files."""

from pathlib import Path

import pytest

from quatrain.runtime import LLM, BundleError
from quatrain.runtime.folder_kind import find_kind


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ((), None),
        (("manifest.json", "tokenizer.json"), "bundle"),
        (("config.json",), "checkpoint"),
        (("config.json", "manifest.json"), "checkpoint"),
        (("materialized_config.yaml",), "checkpoint"),
    ],
)
def test_the_kind_of_a_folder(tmp_path: Path, names: tuple[str, ...], kind: str | None) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    assert find_kind(tmp_path) == kind
    assert find_kind(tmp_path / "absent") is None


def test_a_bundle_with_a_stray_config_is_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "manifest.json").write_text('{"family": "dense", "graphs": [], "files": []}')
    assert find_kind(tmp_path) == "bundle"
    (tmp_path / "manifest.json").write_text('{"family": "den')
    assert find_kind(tmp_path) == "checkpoint"


def test_a_checkpoint_with_a_manifest_of_its_own_is_no_bundle(tmp_path: Path) -> None:
    for name in ("config.json", "manifest.json"):
        (tmp_path / name).write_text("{}")
    assert find_kind(tmp_path) != "bundle"


@pytest.mark.parametrize("names", [("config.json",), ("config.json", "manifest.json")])
def test_a_checkpoint_is_no_bundle(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    with pytest.raises(BundleError) as caught:
        LLM(tmp_path)
    assert caught.value.found == "it is a checkpoint"
    assert f"quatrain export {tmp_path}" in caught.value.fix
