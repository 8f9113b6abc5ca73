"""The sequence axis: its settings, and embedding tables found under names that nobody promised."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    DENSE,
    GOLDEN,
    LLAMA,
    NVIUM,
    Arrays,
    random_tensors,
    write_checkpoint,
    write_nvium,
)

from quatrain.exporter.checkpoint import expected_tensors, open_checkpoint
from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.checkpoint.names import stream_table_name
from quatrain.exporter.checkpoint.streams import read_streams
from quatrain.exporter.errors import CheckpointError, SpecError
from quatrain.exporter.spec import DecoderSpec, KVMirror, Streams

INTRA = "scale_seq_attn_per_suffix_layerwise"
MIRRORS = {"kv_mirror_layers": [2], "kv_mirror_imitated_layers": [0]}
THREE = {"scale_seq_times": 2}
TABLES = "model.scale_seq_embed_tokens_list"


def read(**settings: object) -> Streams | None:
    """Read the streams of a Llama of three layers."""
    return read_streams(Fields({**LLAMA, **settings}, "config.json"), 3)


def refusal(**settings: object) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read(**settings)
    assert "config.json" in caught.value.asked
    return caught.value


def tensors_with(*names: str, shape: tuple[int, ...] = (48, 16)) -> Arrays:
    """A dense decoder's tensors, and further ones that are filled with their number, from 1."""
    extra = {name: np.full(shape, i, ml_dtypes.bfloat16) for i, name in enumerate(names, start=1)}
    return random_tensors(DENSE) | extra


def opening_refusal(folder: Path, tensors: Arrays, **settings: object) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(write_checkpoint(folder, tensors, **settings))
    assert str(folder) in f"{caught.value.asked}{caught.value.found}"
    return caught.value


@pytest.mark.parametrize(
    ("name", "layers", "tied", "streams"),
    [
        ("hidden_decoding", 4, False, Streams(4)),
        ("hidden_decoding_sfa", 6, False, Streams(4, (True, True, False, True, True, False))),
        (
            "hidden_decoding_mirror",
            6,
            True,
            Streams(4, (True, False, True, True, True, False), (KVMirror(5, 0), KVMirror(4, 1))),
        ),
    ],
)
def test_golden_checkpoints(name: str, layers: int, tied: bool, streams: Streams) -> None:
    checkpoint = open_checkpoint(GOLDEN / name / "checkpoint")
    spec, backbone = checkpoint.spec, checkpoint.spec.backbone
    assert (spec.streams, spec.family) == (streams, "hidden_decoding")
    assert (backbone.model_type, backbone.qk_norm) == ("qwen3", True)
    assert (backbone.num_hidden_layers, backbone.tie_word_embeddings) == (layers, tied)
    assert (backbone.max_position_embeddings, backbone.sliding_windows) == (128, ())
    assert (checkpoint.eos_token_ids, checkpoint.bos_token_id) == ([2], 1)
    assert checkpoint.leftovers == []
    assert {n: t.shape for n, t in checkpoint.tensors.items()} == expected_tensors(spec)
    stored = load_file(GOLDEN / name / "checkpoint" / "model.safetensors")
    assert checkpoint.tensors.keys() == stored.keys()
    for table in map(stream_table_name, range(4)):
        np.testing.assert_array_equal(checkpoint.tensors[table].read(), stored[table])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scale_seq_times": None},
        {"scale_seq_times": 0},
        {"model_type": "llama_scale_seq", "scale_seq_times": 0},
        {"scale_seq_times": 0, INTRA: [True, False, True]},
        {"kv_mirror_layers": [], "kv_mirror_imitated_layers": []},
    ],
)
def test_a_plain_decoder_has_no_streams(settings: dict[str, Any]) -> None:
    assert read(**settings) is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (THREE, Streams(3)),
        ({"model_type": "qwen3_scale_seq", **THREE}, Streams(3)),
        ({**THREE, INTRA: [True, False, True]}, Streams(3, (True, False, True))),
        ({**THREE, INTRA: [0, 1, 1]}, Streams(3, (False, True, True))),
        ({**THREE, INTRA: [False, False, False]}, Streams(3)),
        (MIRRORS, Streams(1, (), (KVMirror(2, 0),))),
        ({**MIRRORS, INTRA: [1, 1, 1]}, Streams(1, (), (KVMirror(2, 0),))),
        (
            {**THREE, "kv_mirror_layers": [2, 1], "kv_mirror_imitated_layers": [0, 0]},
            Streams(3, (), (KVMirror(2, 0), KVMirror(1, 0))),
        ),
    ],
)
def test_streams_are_read(settings: dict[str, Any], expected: Streams) -> None:
    assert read(**settings) == expected


@pytest.mark.parametrize(
    ("settings", "asked", "found"),
    [
        ({"model_type": "llama_scale_seq"}, "scale_seq_times", "no such key"),
        ({"scale_seq_times": -1}, "scale_seq_times in config.json: a number of extra", "-1"),
        ({"scale_seq_times": 1.0}, "scale_seq_times in config.json: an integer", "1.0"),
        ({"scale_seq_times": True}, "scale_seq_times in config.json: an integer", "True"),
        ({**THREE, INTRA: True}, f"{INTRA} in config.json: a list of true and false", "True"),
        ({**THREE, INTRA: [1, 0, 2]}, "a list of true and false", "[1, 0, 2]"),
        ({**THREE, INTRA: [1.0, 0, 1]}, "a list of true and false", "[1.0, 0, 1]"),
        ({**THREE, INTRA: ["true", 0, 1]}, "a list of true and false", "['true', 0, 1]"),
        (
            {**THREE, INTRA: [True]},
            f"{INTRA} in config.json: one entry for each of 3",
            "a list of 1",
        ),
        ({**THREE, INTRA: []}, "one entry for each of 3 layers", "a list of 0"),
        (
            {**THREE, INTRA: [1, 1, 1, 0, 1]},
            "one entry for each of 3 layers",
            "a list of 5; a factorized layer listed beyond the depth: layer 4",
        ),
        ({**THREE, INTRA: [1, 1, 1, 0]}, "one entry for each of 3 layers", "a list of 4"),
        ({INTRA: [True]}, "one entry for each of 3 layers", "a list of 1"),
        (
            {"kv_mirror_layers": [2, 1], "kv_mirror_imitated_layers": [0]},
            "kv_mirror_layers and kv_mirror_imitated_layers in config.json",
            "2 layers that mirror, 1 that are mirrored",
        ),
        ({"kv_mirror_layers": [2]}, "kv_mirror_layers and", "1 layers that mirror, 0 that"),
        ({"kv_mirror_imitated_layers": [2]}, "kv_mirror_layers and", "0 layers that mirror, 1"),
        ({**MIRRORS, "kv_mirror_layers": [2.0]}, "kv_mirror_layers in config.json", "[2.0]"),
        ({**MIRRORS, "kv_mirror_imitated_layers": ["0"]}, "kv_mirror_imitated_layers in", "['0']"),
    ],
)
def test_malformed_settings(settings: dict[str, Any], asked: str, found: str) -> None:
    error = refusal(**settings)
    assert asked in error.asked
    assert error.found == found or (len(found) > 12 and found in error.found)


@pytest.mark.parametrize(
    "pairs", [([3], [0]), ([1], [1]), ([0], [2]), ([2], [-1]), ([2, 2], [0, 1])]
)
def test_impossible_mirrors(tmp_path: Path, pairs: tuple[list[int], list[int]]) -> None:
    settings = dict(zip(("kv_mirror_layers", "kv_mirror_imitated_layers"), pairs, strict=True))
    with pytest.raises(SpecError, match="kv_mirror_layers"):
        open_checkpoint(write_checkpoint(tmp_path, random_tensors(DENSE), **settings))


@pytest.mark.parametrize(
    "names",
    [
        (f"{TABLES}.0.weight", f"{TABLES}.1.weight"),
        ("model.scale_seq_embeddings.1", "model.scale_seq_embeddings.2"),
        ("scale_seq_table_1.weight", "scale_seq_table_2.weight"),
        tuple(f"model.scale_seq.tables.{i}" for i in range(1, 12)),  # 10 comes after 9
    ],
)
def test_tables_of_any_name_are_renamed_in_order(tmp_path: Path, names: tuple[str, ...]) -> None:
    settings = {"model_type": "llama_scale_seq", "scale_seq_times": len(names)}
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, tensors_with(*names), **settings))
    assert checkpoint.spec == DecoderSpec(BACKBONE, streams=Streams(len(names) + 1))
    assert checkpoint.leftovers == []
    for stream, stored_name in enumerate(names, start=1):
        tensor = checkpoint.tensors[stream_table_name(stream)]
        assert (tensor.name, tensor.stored_name) == (stream_table_name(stream), stored_name)
        assert np.all(tensor.read() == stream)


@pytest.mark.parametrize("model_type", ["llama", "llama_scale_seq"])
def test_fewer_tables_than_promised(tmp_path: Path, model_type: str) -> None:
    tensors = tensors_with(f"{TABLES}.0.weight")
    error = opening_refusal(tmp_path, tensors, model_type=model_type, scale_seq_times=3)
    assert "scale_seq_times = 3 in" in error.asked and "3 embedding tables" in error.asked
    assert error.found == f"1 in {tmp_path}: {TABLES}.0.weight"
    assert "all files of the weights" in error.fix and "set scale_seq_times" in error.fix


def test_no_table_at_all(tmp_path: Path) -> None:
    error = opening_refusal(tmp_path, random_tensors(DENSE), scale_seq_times=10**15)
    assert error.found == f"0 in {tmp_path}"


def test_more_tables_than_promised(tmp_path: Path) -> None:
    names = [f"{TABLES}.{i}.weight" for i in range(3)]
    error = opening_refusal(tmp_path, tensors_with(*names), scale_seq_times=2)
    assert "scale_seq_times = 2" in error.asked
    assert error.found == f"3 in {tmp_path}: {', '.join(names)}"
    assert error.fix.startswith("set scale_seq_times")


def test_tables_that_config_json_does_not_know(tmp_path: Path) -> None:
    tensors = tensors_with(f"{TABLES}.0.weight")
    error = opening_refusal(tmp_path, tensors)
    assert "no scale_seq_times in" in error.asked and f"{TABLES}.0.weight" in error.found
    assert "scale_seq_times = 0 in" in opening_refusal(tmp_path, tensors, scale_seq_times=0).asked


@pytest.mark.parametrize(
    "names",
    [
        ("scale_seq.0", "scale_seq.2"),
        ("scale_seq.2", "scale_seq.3"),
        ("scale_seq.1", "scale_seq.01"),
        ("a.scale_seq.0", "b.scale_seq.1"),
    ],
)
def test_indices_with_gaps(tmp_path: Path, names: tuple[str, str]) -> None:
    error = opening_refusal(tmp_path, tensors_with(*names), **THREE)
    assert "not consecutive from 0 or 1" in error.found
    assert all(name in error.found for name in names)


def test_tables_of_another_shape_are_named(tmp_path: Path) -> None:
    tensors = tensors_with(f"{TABLES}.0.weight")
    tensors[f"{TABLES}.1.weight"] = np.zeros((47, 16), np.float32)
    error = opening_refusal(tmp_path, tensors, **THREE)
    assert "[48, 16]" in error.asked
    assert error.found == f"1 of another shape: {TABLES}.1.weight [47, 16]"


def test_what_is_no_table_is_unexpected(tmp_path: Path) -> None:
    tensors = tensors_with(f"{TABLES}.0.weight")
    tensors["model.scale_seq_norms.1.weight"] = np.zeros(16, np.float32)
    tensors["model.scale_seq_projection.weight"] = np.zeros((48, 16), np.float32)
    error = opening_refusal(tmp_path, tensors, scale_seq_times=1)
    assert error.found == (
        "2 unexpected: model.scale_seq_norms.1.weight, model.scale_seq_projection.weight"
    )


def test_no_tensor_is_lost_to_the_name_of_a_table(tmp_path: Path) -> None:
    tensors = tensors_with("other.scale_seq.0")
    tensors[f"{TABLES}.0.weight"] = np.zeros(16, np.float32)
    error = opening_refusal(tmp_path, tensors, scale_seq_times=1)
    assert error.found.endswith(f"under the names of tables: {TABLES}.0.weight")


@pytest.mark.parametrize(
    "name", ["model.scale_seq_oe_embed_list.0", "model.oe_embed.0.weight", "oe_up_proj.weight"]
)
def test_over_encoding_is_refused_by_name(tmp_path: Path, name: str) -> None:
    error = opening_refusal(tmp_path, tensors_with(name), scale_seq_times=1)
    assert "over-encoding" in error.found and name in error.found


def test_mirrors_of_a_decoder_with_one_stream(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, random_tensors(DENSE), **MIRRORS))
    assert checkpoint.spec.mirror_source(2) == 0 and checkpoint.spec.num_streams == 1
    assert set(checkpoint.tensors) == set(random_tensors(DENSE))


def test_streams_of_an_nvium_model(tmp_path: Path) -> None:
    folder = write_nvium(tmp_path, settings=NVIUM, **MIRRORS)
    with pytest.raises(SpecError, match="streams together with N-vium's exits"):
        open_checkpoint(folder)
