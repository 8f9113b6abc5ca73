"""Single files and shards: which are read, and how a folder can be wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.exporter.checkpoint.folders import Arrays, write_json, write_shards

from quatrain.exporter.checkpoint.weight_files import read_weights
from quatrain.exporter.errors import CheckpointError


def arrays(*names: str) -> Arrays:
    return {name: np.arange(4, dtype=np.float32) for name in names}


def refusal(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_weights(folder)
    return caught.value


def test_single_file_goes_before_an_index(tmp_path: Path) -> None:
    write_shards(tmp_path, {"x.safetensors": arrays("b")})
    save_file(arrays("a"), tmp_path / "model.safetensors")
    weights = read_weights(tmp_path)
    assert weights.files == (tmp_path / "model.safetensors",)
    assert list(weights.tensors) == ["a"]


def test_only_safetensors_file_may_have_any_name(tmp_path: Path) -> None:
    save_file(arrays("a"), tmp_path / "weights.safetensors")
    assert read_weights(tmp_path).files == (tmp_path / "weights.safetensors",)


def test_shards_also_in_a_subfolder_and_behind_links(tmp_path: Path) -> None:
    (tmp_path / "folder" / "more").mkdir(parents=True)
    save_file(arrays("c"), tmp_path / "blob")
    folder = write_shards(
        tmp_path / "folder",
        {"1.safetensors": arrays("a"), "more/2.safetensors": arrays("b")},
        {"a": "1.safetensors", "b": "more/2.safetensors", "c": "3.safetensors"},
    )
    (folder / "3.safetensors").symlink_to(tmp_path / "blob")
    weights = read_weights(folder)
    assert [file.name for file in weights.files] == [
        "1.safetensors",
        "3.safetensors",
        "2.safetensors",
    ]
    assert {name: t.file.name for name, t in weights.tensors.items()} == {
        "a": "1.safetensors",
        "b": "2.safetensors",
        "c": "3.safetensors",
    }


@pytest.mark.parametrize("name", ["a\\b.safetensors", "a\udcff.safetensors"])
def test_file_names_that_no_graph_can_hold_are_refused(tmp_path: Path, name: str) -> None:
    save_file(arrays("a"), tmp_path / "x")
    (tmp_path / "x").rename(tmp_path / name)
    assert name in refusal(tmp_path).found


def test_shards_of_one_name_in_two_folders_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    write_shards(tmp_path, {"one/x.safetensors": arrays("a"), "two/x.safetensors": arrays("b")})
    error = refusal(tmp_path)
    assert "same file name in several folders: x.safetensors" in error.found


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_named_and_never_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"cposix\nsystem\n(S'false'\ntR.")
    error = refusal(tmp_path)
    assert f"no safetensors file, only {name}" in error.found
    assert "save_pretrained" in error.fix


def test_no_weights_at_all(tmp_path: Path) -> None:
    assert "neither model.safetensors nor model.safetensors.index.json" in refusal(tmp_path).found


def test_several_files_without_an_index(tmp_path: Path) -> None:
    for name in ("model-1.safetensors", "model-2.safetensors"):
        save_file(arrays(name), tmp_path / name)
    error = refusal(tmp_path)
    assert "several safetensors files (model-1.safetensors, model-2.safetensors)" in error.found
    assert "index.json" in error.fix


def test_adapter_alone(tmp_path: Path) -> None:
    save_file(arrays("a"), tmp_path / "adapter_model.safetensors")
    error = refusal(tmp_path)
    assert "low-rank adapter" in error.found and "merge" in error.fix


def test_missing_shard(tmp_path: Path) -> None:
    weight_map = {"a": "1.safetensors", "b": "2.safetensors"}
    error = refusal(write_shards(tmp_path, {"1.safetensors": arrays("a")}, weight_map))
    assert error.found == "missing: 2.safetensors" and "the 2 shards" in error.asked


def test_tensor_absent_from_its_shard(tmp_path: Path) -> None:
    weight_map = {"a": "1.safetensors", "b": "1.safetensors"}
    error = refusal(write_shards(tmp_path, {"1.safetensors": arrays("a")}, weight_map))
    assert error.found == "not in the shard: b" and "1.safetensors" in error.asked


def test_tensor_that_the_index_does_not_list(tmp_path: Path) -> None:
    weight_map = {"a": "1.safetensors"}
    error = refusal(write_shards(tmp_path, {"1.safetensors": arrays("a", "b")}, weight_map))
    assert error.found == "not listed for it: b"


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    shards = {"1.safetensors": arrays("a"), "2.safetensors": arrays("a", "b")}
    weight_map = {"a": "1.safetensors", "b": "2.safetensors"}
    assert refusal(write_shards(tmp_path, shards, weight_map)).found == "also in 1.safetensors: a"


@pytest.mark.parametrize(
    "shard",
    ["../1.safetensors", "/etc/passwd", "a/../../b", "..\\b", "C:\\b", "\\\\host\\b", "", "a\0", 7],
)
def test_shard_that_leaves_the_folder(tmp_path: Path, shard: Any) -> None:
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {"a": shard}})
    error = refusal(tmp_path)
    assert f"{shard!r}, which is not the path of a file inside" in error.found
    assert "tensor a" in error.asked


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": ["a"]}])
def test_index_without_a_map(tmp_path: Path, index: object) -> None:
    write_json(tmp_path / "model.safetensors.index.json", index)
    assert refusal(tmp_path).found == "no weight_map"


def test_compile_prefix_is_stripped_wherever_it_is(tmp_path: Path) -> None:
    save_file(arrays("_orig_mod.a.b", "c._orig_mod.d"), tmp_path / "model.safetensors")
    tensors = read_weights(tmp_path).tensors
    assert {name: t.stored_name for name, t in tensors.items()} == {
        "a.b": "_orig_mod.a.b",
        "c.d": "c._orig_mod.d",
    }
    assert tensors["a.b"].name == "a.b"


def test_names_that_collide_without_the_prefix(tmp_path: Path) -> None:
    save_file(arrays("_orig_mod.a", "a"), tmp_path / "model.safetensors")
    assert refusal(tmp_path).found == "names that become the same: _orig_mod.a, a"
