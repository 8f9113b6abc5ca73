"""Lists of layers as a user writes them."""

from pathlib import Path
from typing import Any

import pytest
from tests.exporter.checkpoint.folders import write_dense
from tests.exporter.expansion.sources import expect_nothing

from quatrain.exporter import expand_checkpoint
from quatrain.exporter.errors import ExportError
from quatrain.exporter.expansion.layer_list import format_layers, parse_layers


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
