"""Expansion writes a config.json of more streams, and keeps the rest of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.checkpoint.folders import write_dense
from tests.exporter.expansion.sources import write_qwen3, write_streams

from quatrain.exporter import expand_checkpoint, open_checkpoint
from quatrain.exporter.spec import KVMirror, Streams


def read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


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
