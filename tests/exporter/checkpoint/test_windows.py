"""Sliding windows, against transformers where it has them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    DENSE,
    LLAMA,
    random_tensors,
    write_checkpoint,
)
from transformers import AutoConfig

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.checkpoint.windows import read_windows
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import DecoderSpec, Streams

LAYERWISE = "sliding_window_size_layerwise"
FULL, SLIDING = "full_attention", "sliding_attention"
# Layer 0 attends to the rows of each stream apart, layers 1 and 2 to all rows.
STREAMS = Streams(4, (True, False, False))


def read(
    streams: Streams | None = None, model_type: str = "qwen2", **settings: object
) -> tuple[int | None, ...]:
    """Read the windows of a decoder with three layers and 64 positions."""
    config = Fields({**LLAMA, "model_type": model_type, **settings}, "config.json")
    return read_windows(config, replace(BACKBONE, model_type=model_type), streams)


def refusal(streams: Streams | None = None, **settings: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read(streams, **settings)
    assert "config.json" in caught.value.asked
    return caught.value


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ()),
        ({"sliding_window": 8, "max_window_layers": 0}, ()),
        ({"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 1}, ()),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1}, ()),
        ({"use_sliding_window": True, "sliding_window": 8}, ()),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}, ()),
        (
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
            (None, 8, 8),
        ),
        ({"use_sliding_window": True, "sliding_window": 1, "max_window_layers": 0}, (1, 1, 1)),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": [SLIDING, FULL, SLIDING],
                "max_window_layers": 1,
            },
            (8, None, 8),
        ),
        ({"layer_types": [FULL] * 3, "sliding_window": 8, "use_sliding_window": True}, ()),
    ],
)
def test_windows_are_those_of_transformers(
    model_type: str, settings: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    assert read(model_type=model_type, **settings) == expected
    theirs = AutoConfig.for_model(**{**LLAMA, "model_type": model_type, **settings})
    windows = [theirs.sliding_window if t == SLIDING else None for t in theirs.layer_types]
    assert windows == list(expected or (None,) * 3)


def test_the_default_window_is_that_of_transformers() -> None:
    settings = {"use_sliding_window": True, "max_window_layers": 2}
    long = replace(BACKBONE, model_type="qwen3", max_position_embeddings=8192)
    windows = read_windows(Fields({**LLAMA, **settings}, "config.json"), long, None)
    theirs = AutoConfig.for_model("qwen3", **settings)
    assert windows == (None, None, theirs.sliding_window)


def test_llama_takes_no_notice_of_a_window() -> None:
    settings = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}
    assert read(model_type="llama", **settings) == ()
    assert read(model_type="llama", layer_types=[FULL] * 3, sliding_window=8) == ()


@pytest.mark.parametrize(
    ("settings", "asked", "found"),
    [
        ({"layer_types": [FULL, "linear_attention", FULL]}, "full or sliding", "linear_attention"),
        (
            {"layer_types": [FULL]},
            "layer_types in config.json: one entry for each of 3",
            "a list of 1",
        ),
        ({"layer_types": FULL}, "layer_types in config.json: a list of strings", FULL),
        (
            {"layer_types": [FULL, SLIDING, FULL], "sliding_window": 8},
            "layer_types with sliding_attention",
            "use_sliding_window is not true",
        ),
        (
            {"layer_types": [SLIDING] * 3, "sliding_window": None, "use_sliding_window": True},
            "layer_types with sliding_attention",
            "sliding_window is null",
        ),
        (
            {"model_type": "llama", "layer_types": [SLIDING] * 3, "sliding_window": 8},
            "layer_types with sliding_attention",
            "transformers ignores it in a llama decoder",
        ),
        ({"use_sliding_window": 1}, "use_sliding_window in config.json: true or false", "1"),
        ({"use_sliding_window": True, "sliding_window": 0}, "a number of keys, 1 or more", "0"),
        ({"use_sliding_window": True, "sliding_window": 2.5}, "an integer", "2.5"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], asked: str, found: str) -> None:
    error = refusal(**settings)
    assert asked in error.asked and found in error.found
    if "disagree" in error.found:
        assert LAYERWISE in error.fix


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_layerwise_windows_override_the_others(model_type: str) -> None:
    settings = {"use_sliding_window": True, "sliding_window": 8, "layer_types": [SLIDING] * 3}
    assert read(model_type=model_type, **settings, **{LAYERWISE: [4, -1, 1]}) == (4, None, 1)
    assert read(model_type=model_type, **settings, **{LAYERWISE: [-1, 0, -1]}) == ()
    assert "mamba" in refusal(layer_types=["mamba"] * 3, **{LAYERWISE: [4, 4, 4]}).found


@pytest.mark.parametrize(
    ("streams", "sizes", "expected"),
    [
        (None, [63, 64, 65], (63, None, None)),
        (Streams(1), [63, 64, 65], (63, None, None)),
        (STREAMS, [63, 64, 255], (63, 64, 255)),
        (STREAMS, [64, 256, 10**20], ()),
        (STREAMS, [65, 256, 6], (None, None, 6)),
        (Streams(4), [64, 255, 256], (64, 255, None)),
    ],
)
def test_window_that_no_sequence_fills_is_none(
    streams: Streams | None, sizes: list[int], expected: tuple[int | None, ...]
) -> None:
    assert read(streams, **{LAYERWISE: sizes}) == expected


def test_transformers_window_is_in_rows_where_streams_cross() -> None:
    settings = {"use_sliding_window": True, "sliding_window": 100, "max_window_layers": 0}
    assert read(**settings) == ()
    assert read(STREAMS, **settings) == (None, 100, 100)


@pytest.mark.parametrize("size", [2.5, 8.0, "8", True, None, -2, [8]])
@pytest.mark.parametrize(
    ("streams", "layer", "unit"),
    [
        (None, 1, "tokens"),
        (STREAMS, 0, "tokens"),
        (STREAMS, 1, "rows, 4 for each token"),
        (STREAMS, 2, "rows, 4 for each token"),
    ],
)
def test_size_that_is_no_whole_number(
    streams: Streams | None, layer: int, unit: str, size: object
) -> None:
    sizes: list[object] = [-1, -1, -1]
    sizes[layer] = size
    error = refusal(streams, **{LAYERWISE: sizes})
    assert error.asked == f"{LAYERWISE} in config.json: for layer {layer} a whole number of {unit}"
    assert error.found == repr(size) and "-1: no window" in error.fix


@pytest.mark.parametrize(
    ("sizes", "asked", "found"),
    [
        (8, "a list of windows, one for each layer", "8"),
        ([8, 8], "one entry for each of 3 layers", "a list of 2"),
        ([8] * 4, "one entry for each of 3 layers", "a list of 4"),
        ([], "one entry for each of 3 layers", "a list of 0"),
    ],
)
def test_malformed_layerwise_list(sizes: object, asked: str, found: str) -> None:
    error = refusal(**{LAYERWISE: sizes})
    assert f"{LAYERWISE} in config.json: {asked}" == error.asked and error.found == found


def test_an_opened_checkpoint_has_its_windows(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, random_tensors(DENSE), **{LAYERWISE: [-1, 8, 64]})
    backbone = open_checkpoint(tmp_path).spec.backbone
    assert backbone == replace(BACKBONE, sliding_windows=(None, 8, None))


def test_windows_of_an_opened_checkpoint_with_streams(tmp_path: Path) -> None:
    spec = DecoderSpec(BACKBONE, streams=STREAMS)
    settings = {"scale_seq_times": 3, "scale_seq_attn_per_suffix_layerwise": [1, 0, 0]}
    write_checkpoint(tmp_path, random_tensors(spec), **settings, **{LAYERWISE: [64, 64, 256]})
    opened = open_checkpoint(tmp_path).spec
    assert opened.streams == STREAMS and opened.backbone.sliding_windows == (None, 64, None)


def test_absurd_number_of_layers_that_slide(tmp_path: Path) -> None:
    settings = {"model_type": "qwen2", "use_sliding_window": True, "num_hidden_layers": 10**12}
    write_checkpoint(tmp_path, random_tensors(DENSE), **settings)
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        open_checkpoint(tmp_path)
