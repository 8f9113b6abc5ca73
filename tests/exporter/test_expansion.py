"""Expansion: more streams, each a copy of an old one, whole or not at all, and all else kept."""

import errno
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    DENSE,
    LLAMA,
    Arrays,
    random_tensors,
    write_checkpoint,
    write_dense,
    write_json,
    write_nvium,
    write_shards,
)

from quatrain.exporter import expand_checkpoint, open_checkpoint
from quatrain.exporter import progress as progress_module
from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.names import EMBEDDINGS, LM_HEAD, stream_table_name
from quatrain.exporter.errors import CheckpointError, ExportError
from quatrain.exporter.expansion import expand as expand_module
from quatrain.exporter.expansion.layer_list import format_layers, parse_layers
from quatrain.exporter.spec import Backbone, DecoderSpec, KVMirror, Streams

INDEX = "model.safetensors.index.json"
QWEN3 = {
    **LLAMA,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 4,
    "layer_types": ["full_attention"] * 3,
}


def qwen3_spec(tied: bool = False) -> DecoderSpec:
    return DecoderSpec(
        Backbone("qwen3", 48, 16, 24, 3, 4, 2, 4, 64, tie_word_embeddings=tied, qk_norm=True)
    )


def write_qwen3(folder: Path, tied: bool, **changes: object) -> Path:
    tensors = random_tensors(qwen3_spec(tied))
    return write_checkpoint(folder, tensors, QWEN3, tie_word_embeddings=tied, **changes)


def write_llama(folder: Path, tied: bool) -> Path:
    spec = DecoderSpec(replace(BACKBONE, tie_word_embeddings=tied))
    return write_checkpoint(folder, random_tensors(spec), tie_word_embeddings=tied)


def read_table(folder: Path, stream: int) -> bytes:
    return b"".join(
        bytes(chunk)
        for chunk in open_checkpoint(folder).tensors[stream_table_name(stream)].chunks()
    )


def read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def fingerprint(folder: Path) -> dict[str, tuple[int, str]]:
    """Time and hash of every file in a folder."""
    return {
        str(file.relative_to(folder)): (
            file.stat().st_mtime_ns,
            hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        for file in folder.rglob("*")
        if file.is_file()
    }


# --- what is written ---


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_dense_becomes_two_equal_streams(tmp_path: Path, family: str, tied: bool) -> None:
    source = (write_qwen3 if family == "qwen3" else write_llama)(tmp_path / "dense", tied)
    before = open_checkpoint(source)
    report = expand_checkpoint(source, tmp_path / "out", num_streams=2)
    after = open_checkpoint(tmp_path / "out")
    assert after.spec.streams == Streams(2)
    assert after.spec.backbone == before.spec.backbone
    assert after.tensors.keys() == before.tensors.keys() | {stream_table_name(1)}
    for name, tensor in before.tensors.items():
        assert np.array_equal(after.tensors[name].read(), tensor.read()), name
    assert read_table(tmp_path / "out", 1) == read_table(source, 0)
    table = 48 * 16
    assert report.new_bytes == 2 * table
    assert report.after.num_parameters - report.before.num_parameters == table
    # 3 layers, keys and values of 2 heads of 4 numbers, in 16 bits
    assert report.before.kv_bytes_per_token == 3 * 2 * 2 * 4 * 2
    assert report.after.kv_bytes_per_token == 2 * report.before.kv_bytes_per_token


def test_doubling_three_times_is_as_good_as_once(tmp_path: Path) -> None:
    source = write_dense(tmp_path / "1")
    for old, new in ((1, 2), (2, 4), (4, 8)):
        expand_checkpoint(tmp_path / str(old), tmp_path / str(new), num_streams=new)
    expand_checkpoint(source, tmp_path / "direct", num_streams=8)
    assert open_checkpoint(tmp_path / "8").spec == open_checkpoint(tmp_path / "direct").spec
    for stream in range(8):
        assert read_table(tmp_path / "8", stream) == read_table(source, 0)
        assert read_table(tmp_path / "direct", stream) == read_table(source, 0)


@pytest.mark.parametrize("num_streams", [3, 4, 5])
def test_new_tables_repeat_the_old_ones_in_turn(tmp_path: Path, num_streams: int) -> None:
    source = write_streams(tmp_path / "two")
    assert read_table(source, 0) != read_table(source, 1)
    expand_checkpoint(source, tmp_path / "out", num_streams=num_streams)
    for stream in range(num_streams):
        assert read_table(tmp_path / "out", stream) == read_table(source, stream % 2)


def write_streams(folder: Path, tensors: Arrays | None = None, **changes: object) -> Path:
    """A checkpoint of two streams whose tables differ."""
    spec = DecoderSpec(BACKBONE, streams=Streams(2))
    return write_checkpoint(folder, tensors or random_tensors(spec), scale_seq_times=1, **changes)


def test_config_says_what_changed_and_keeps_the_rest(tmp_path: Path) -> None:
    auto_map = {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}
    source = write_qwen3(tmp_path / "dense", False, auto_map=auto_map, a_float=1e-06, last=None)
    expand_checkpoint(source, tmp_path / "out", num_streams=4)
    config = read_config(tmp_path / "out")
    expected = read_config(source) | {
        "model_type": "qwen3_scale_seq",
        "architectures": ["Qwen3ScaleSeqForCausalLM"],
        "scale_seq_times": 3,
    }
    del expected["auto_map"]
    assert config == expected
    assert list(config) == list(expected)
    again = tmp_path / "again"
    expand_checkpoint(tmp_path / "out", again, num_streams=8)
    assert read_config(again) == config | {"scale_seq_times": 7}


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        ("LlamaForCausalLM", "LlamaScaleSeqForCausalLM"),
        ("LlamaModel", "LlamaScaleSeqModel"),
        ("MyDecoder", "MyDecoderScaleSeq"),
    ],
)
def test_classes_get_names_of_their_own(tmp_path: Path, name: str, renamed: str) -> None:
    source = write_dense(tmp_path / "dense", architectures=[name])
    expand_checkpoint(source, tmp_path / "out", num_streams=2)
    assert read_config(tmp_path / "out")["architectures"] == [renamed]


def test_intra_stream_layers_are_chosen_kept_and_dropped(tmp_path: Path) -> None:
    source = write_dense(tmp_path / "1")
    report = expand_checkpoint(source, tmp_path / "2", num_streams=2, intra_stream="0,2")
    key = "scale_seq_attn_per_suffix_layerwise"
    assert read_config(tmp_path / "2")[key] == [True, False, True] == report.intra_stream
    expand_checkpoint(tmp_path / "2", tmp_path / "4", num_streams=4)
    spec = open_checkpoint(tmp_path / "4").spec
    assert spec.streams == Streams(4, intra_stream=(True, False, True))
    expand_checkpoint(tmp_path / "4", tmp_path / "8", num_streams=8, intra_stream="none")
    assert key not in read_config(tmp_path / "8")


def test_kv_mirrors_are_kept(tmp_path: Path) -> None:
    mirror = {"kv_mirror_layers": [2], "kv_mirror_imitated_layers": [0]}
    source = write_streams(tmp_path / "two", **mirror)
    expand_checkpoint(source, tmp_path / "out", num_streams=4, intra_stream="all")
    assert open_checkpoint(tmp_path / "out").spec.streams == Streams(
        4, (True, True, True), (KVMirror(2, 0),)
    )


def test_a_window_that_now_counts_rows_is_told(tmp_path: Path) -> None:
    # As long as all 64 tokens it is no window of the dense model, but 128 rows do not fit in it.
    source = write_dense(tmp_path / "dense", sliding_window_size_layerwise=[-1, 64, 32])
    assert open_checkpoint(source).spec.backbone.sliding_windows == (None, None, 32)
    report = expand_checkpoint(source, tmp_path / "out", num_streams=2, intra_stream="2")
    [warning] = report.warnings
    assert "window of 64" in warning and "32 tokens" in warning


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


@pytest.mark.parametrize("prefix", ["_orig_mod.", ""])
def test_compiled_and_tied_heads_work(tmp_path: Path, prefix: str) -> None:
    tensors = random_tensors(qwen3_spec(tied=True))
    tensors[LM_HEAD] = tensors.pop(EMBEDDINGS)
    stored = {prefix + name: array for name, array in tensors.items()}
    source = write_checkpoint(tmp_path / "dense", stored, QWEN3, tie_word_embeddings=True)
    expand_checkpoint(source, tmp_path / "2", num_streams=2)
    expand_checkpoint(tmp_path / "2", tmp_path / "4", num_streams=4)
    for stream in range(4):
        assert read_table(tmp_path / "4", stream) == tensors[LM_HEAD].tobytes()


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("pattern", ["_orig_mod.model.scale_seq_emb.{}.weight", "scale_seq_{}"])
def test_tables_of_other_names_are_continued(tmp_path: Path, pattern: str, first: int) -> None:
    tensors = random_tensors(DecoderSpec(BACKBONE, streams=Streams(2)))
    tensors[pattern.format(first)] = tensors.pop(stream_table_name(1))
    source = write_streams(tmp_path / "two", tensors)
    report = expand_checkpoint(source, tmp_path / "out", num_streams=12)
    assert report.new_tables == [pattern.format(first + k) for k in range(1, 11)]
    for stream in range(12):
        assert read_table(tmp_path / "out", stream) == read_table(source, stream % 2)


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


def test_tables_stream_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_dense(tmp_path / "dense")
    chunks = LazyTensor.chunks
    asked: list[int] = []

    def count(self: LazyTensor, chunk_bytes: int = 0) -> Any:
        asked.append(chunk_bytes)
        return chunks(self, 100)  # no divisor of the table's 1536 bytes

    monkeypatch.setattr(LazyTensor, "chunks", count)
    expand_checkpoint(source, tmp_path / "out", num_streams=2)
    monkeypatch.undo()
    assert len(asked) == 1 and 0 < asked[0] <= 1 << 24
    assert read_table(tmp_path / "out", 1) == read_table(source, 0)


def test_progress_names_every_table(tmp_path: Path) -> None:
    lines: list[str] = []
    progress = progress_module.Progress(lines.append)
    source = write_dense(tmp_path / "dense")
    report = expand_checkpoint(source, tmp_path / "out", num_streams=3, progress=progress)
    assert [stage.name for stage in report.stages] == [
        "read checkpoint",
        "place weights",
        "write tables",
        "check result",
    ]
    for stream in (1, 2):
        assert any(stream_table_name(stream) in line for line in lines)


# --- what is refused ---


def expect_nothing(folder: Path, names: set[str]) -> None:
    assert set(os.listdir(folder)) == names


@pytest.mark.parametrize("num_streams", [-1, 0, 1])
def test_fewer_than_two_streams_are_refused(tmp_path: Path, num_streams: int) -> None:
    source = write_dense(tmp_path / "dense")
    with pytest.raises(ExportError, match=r"it has 1[\s\S]*2 or more"):
        expand_checkpoint(source, tmp_path / "out", num_streams=num_streams)
    expect_nothing(tmp_path, {"dense"})


@pytest.mark.parametrize("num_streams", [1, 2])
def test_streams_are_never_fewer_or_the_same(tmp_path: Path, num_streams: int) -> None:
    source = write_streams(tmp_path / "two")
    with pytest.raises(ExportError, match=r"it has 2[\s\S]*3 or more"):
        expand_checkpoint(source, tmp_path / "out", num_streams=num_streams)
    expect_nothing(tmp_path, {"two"})


def test_a_slip_of_the_finger_is_refused(tmp_path: Path) -> None:
    source = write_dense(tmp_path / "dense")
    with pytest.raises(ExportError, match="more than 1024"):
        expand_checkpoint(source, tmp_path / "out", num_streams=10**9)


def test_exits_are_refused_by_name(tmp_path: Path) -> None:
    source = write_nvium(tmp_path / "nvium")
    with pytest.raises(ExportError, match="N-vium"):
        expand_checkpoint(source, tmp_path / "out", num_streams=2)
    expect_nothing(tmp_path, {"nvium"})


def test_an_existing_output_is_refused_and_kept(tmp_path: Path) -> None:
    source = write_dense(tmp_path / "dense")
    write_dense(tmp_path / "out")
    before = fingerprint(tmp_path)
    with pytest.raises(ExportError, match="something is there already"):
        expand_checkpoint(source, tmp_path / "out", num_streams=2)
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize("place", ["dense", "dense/inside", "dense/../dense", "link/inside"])
def test_the_source_is_never_written_to(tmp_path: Path, place: str) -> None:
    source = write_dense(tmp_path / "dense")
    (tmp_path / "link").symlink_to("dense")
    before = fingerprint(source)
    with pytest.raises(ExportError, match="the source"):
        expand_checkpoint(source, tmp_path / place, num_streams=2)
    assert fingerprint(source) == before


def test_an_output_that_appears_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_dense(tmp_path / "dense")
    write_folder = expand_module.write_folder

    def write_slowly(*args: Any, **kwargs: Any) -> Any:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "precious").write_text("1")
        return write_folder(*args, **kwargs)

    monkeypatch.setattr(expand_module, "write_folder", write_slowly)
    with pytest.raises(ExportError, match="something is there already"):
        expand_checkpoint(source, tmp_path / "out", num_streams=2)
    assert os.listdir(tmp_path / "out") == ["precious"]
    expect_nothing(tmp_path, {"dense", "out"})


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (OSError(errno.ENOSPC, "full"), ExportError, r"write a checkpoint to[\s\S]*disk is full"),
        (CheckpointError("a", "shorter", "c"), CheckpointError, "shorter"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
    ids=["full disk", "source cut", "Ctrl-C"],
)
def test_a_failure_in_the_middle_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    raised: type[BaseException],
    message: str | None,
) -> None:
    source = write_dense(tmp_path / "dense")
    before = fingerprint(source)

    def fail(self: LazyTensor, chunk_bytes: int = 0) -> Any:
        yield b"some"
        raise error

    monkeypatch.setattr(LazyTensor, "chunks", fail)
    with pytest.raises(raised, match=message):
        expand_checkpoint(source, tmp_path / "out", num_streams=2)
    expect_nothing(tmp_path, {"dense"})
    assert fingerprint(source) == before


def test_a_result_that_cannot_be_read_back_gets_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_dense(tmp_path / "dense")
    monkeypatch.setattr(LazyTensor, "chunks", lambda self, chunk_bytes: iter([b"too short"]))
    with pytest.raises(ExportError, match="could not be read back"):
        expand_checkpoint(source, tmp_path / "out", num_streams=2)
    expect_nothing(tmp_path, {"dense"})


# --- lists of layers ---


@pytest.mark.parametrize(
    ("text", "layers", "shortest"),
    [
        ("none", [], "none"),
        ("all", range(10), "all"),
        ("0-9", range(10), "all"),
        ("0-3,5,7-9", [0, 1, 2, 3, 5, 7, 8, 9], "0-3,5,7-9"),
        (" 5, 4 ,4-6", [4, 5, 6], "4-6"),
    ],
)
def test_layer_lists_are_read_and_told(text: str, layers: Any, shortest: str) -> None:
    chosen = parse_layers(text, 10)
    assert [layer for layer in range(10) if chosen[layer]] == list(layers)
    assert format_layers(chosen) == shortest


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "neither a layer"),
        ("0,", "neither a layer"),
        ("-1", "neither a layer"),
        ("1-2-3", "neither a layer"),
        ("9" * 5000, "neither a layer"),
        ("first", "neither a layer"),
        ("3", "layer 3, and the decoder has 3"),
        ("0-999999999", "layer 999999999"),
        ("2-1", "ends before it begins"),
    ],
)
def test_other_lists_are_refused(tmp_path: Path, text: str, found: str) -> None:
    source = write_dense(tmp_path / "dense")
    with pytest.raises(ExportError, match=found):
        expand_checkpoint(source, tmp_path / "out", num_streams=2, intra_stream=text)
    expect_nothing(tmp_path, {"dense"})
