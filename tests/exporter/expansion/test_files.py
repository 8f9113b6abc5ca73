"""Expansion writes an index and a file of tables, and brings along what belongs to the model."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from tests.exporter.checkpoint.folders import (
    DENSE,
    LLAMA,
    random_tensors,
    write_checkpoint,
    write_dense,
    write_json,
    write_shards,
)
from tests.exporter.expansion.sources import INDEX, fingerprint, read_table

from quatrain.exporter import expand_checkpoint, open_checkpoint


def test_index_names_every_stored_tensor_with_the_total_size(tmp_path: Path) -> None:
    source = write_dense(tmp_path / "dense")
    expand_checkpoint(source, tmp_path / "out", num_streams=3)
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    found = {}
    for file in (tmp_path / "out").glob("*.safetensors"):
        with safe_open(file, "numpy") as stored:  # the format's own reader takes it
            assert stored.metadata() == {"format": "pt"}
            found |= dict.fromkeys(stored.keys(), file.name)
    assert index["weight_map"] == found
    assert set(found.values()) == {f"model-0000{k}-of-00002.safetensors" for k in (1, 2)}
    total = sum(tensor.nbytes for tensor in open_checkpoint(tmp_path / "out").tensors.values())
    assert index["metadata"]["total_size"] == total


def test_shards_keep_their_names_and_the_new_file_takes_none(tmp_path: Path) -> None:
    tensors = random_tensors(DENSE)
    names = sorted(tensors)
    clash = "model-scale-seq-n2.safetensors"
    shards = {
        "model-00001-of-00002.safetensors": {name: tensors[name] for name in names[::2]},
        clash: {name: tensors[name] for name in names[1::2]},
    }
    write_json(tmp_path / "dense" / "config.json", LLAMA)
    source = write_shards(tmp_path / "dense", shards)
    expand_checkpoint(source, tmp_path / "out", num_streams=2)
    for shard in shards:
        assert (tmp_path / "out" / shard).samefile(source / shard)
    [new] = {f.name for f in (tmp_path / "out").glob("*.safetensors")} - shards.keys()
    assert new == "model-scale-seq-n2-2.safetensors"
    assert read_table(tmp_path / "out", 1) == read_table(source, 0)


def test_leftovers_stay_in_the_index(tmp_path: Path) -> None:
    tensors = random_tensors(DENSE)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)
    source = write_checkpoint(tmp_path / "dense", tensors)
    expand_checkpoint(source, tmp_path / "out", num_streams=2)
    assert open_checkpoint(tmp_path / "out").leftovers == open_checkpoint(source).leftovers != []


def test_only_tokenizer_generation_and_licence_files_come_along(tmp_path: Path) -> None:
    source = write_dense(tmp_path / "dense")
    copied = ["tokenizer.model", "merges.txt", "vocab.json", "chat_template.jinja", "LICENSE"]
    copied += ["README.md", "special_tokens_map.json", "added_tokens.json"]
    left = ["modeling_x.py", "tokenizer_x.py", "pytorch_model.bin", "optimizer.pt", "notes.txt"]
    for name in copied + left:
        (source / name).write_text(name)
    for name in ("generation_config.json", "tokenizer_config.json"):
        write_json(source / name, {})
    (source / "tokenizer_folder").mkdir()
    (source / "original").mkdir()
    expand_checkpoint(source, tmp_path / "out", num_streams=2)
    for name in copied:
        assert (tmp_path / "out" / name).read_text() == name
    own = ["config.json", INDEX, *(f"model-0000{k}-of-00002.safetensors" for k in (1, 2))]
    expected = {*copied, *own, "generation_config.json", "tokenizer_config.json"}
    assert set(os.listdir(tmp_path / "out")) == expected


@pytest.mark.parametrize("weights", [None, "link", "copy"])
def test_weights_are_linked_or_copied_and_the_source_is_untouched(
    tmp_path: Path, weights: Any
) -> None:
    source = write_dense(tmp_path / "dense")
    before = fingerprint(source)
    report = expand_checkpoint(source, tmp_path / "out", num_streams=2, weights=weights)
    placed = tmp_path / "out" / "model-00001-of-00002.safetensors"
    assert placed.samefile(source / "model.safetensors") == (weights != "copy")
    assert placed.read_bytes() == (source / "model.safetensors").read_bytes()
    assert report.weights == ("copy" if weights == "copy" else "link")
    assert fingerprint(source) == before
