"""--dense-fallback: an export's own choice of the layers that run all their channels."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    random_tensors,
    write_checkpoint,
    write_dense,
)

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.cli import main
from quatrain.exporter.dense_fallback import choose_dense_fallback
from quatrain.exporter.errors import ExportError
from quatrain.exporter.export import export_checkpoint, plan_export
from quatrain.exporter.spec import BankTopK, DecoderSpec

SETTINGS = {"bank_size": 8, "top_k": 2, "predictor_rank": 5, "dense_fallback_layers": [1]}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = DecoderSpec(BACKBONE, feed_forward=BankTopK(8, 2, 5))
    folder = tmp_path_factory.mktemp("banks") / "checkpoint"
    return write_checkpoint(folder, random_tensors(spec), bank_topk=SETTINGS)


@pytest.mark.parametrize(
    ("given", "layers"), [(None, (1,)), ([], ()), ([2, 0, 2], (0, 2)), (range(3), (0, 1, 2))]
)
def test_the_choice_takes_the_place_of_the_checkpoints(
    checkpoint: Path, given: Sequence[int] | None, layers: tuple[int, ...]
) -> None:
    opened = open_checkpoint(checkpoint)
    chosen = choose_dense_fallback(opened, given)
    assert chosen.spec.feed_forward == BankTopK(8, 2, 5, dense_fallback_layers=layers)
    assert chosen.tensors == opened.tensors


@pytest.mark.parametrize("layer", [3, -1])
def test_layers_that_are_not_there(checkpoint: Path, tmp_path: Path, layer: int) -> None:
    with pytest.raises(ExportError, match=f"--dense-fallback.*\n.*layer {layer}, and .* has 3"):
        export_checkpoint(checkpoint, tmp_path / "b", dense_fallback=[0, layer])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layers", [[], [1]])
def test_a_model_without_banks(tmp_path: Path, layers: list[int]) -> None:
    dense = write_dense(tmp_path / "dense")
    with pytest.raises(ExportError, match=r"--dense-fallback.*\n.*without bank_topk"):
        plan_export(dense, dense_fallback=layers)
    assert plan_export(dense, dense_fallback=None).feed_forward is None


def test_the_manifest_has_what_was_chosen(checkpoint: Path, tmp_path: Path) -> None:
    for given, layers in ((None, [1]), ([0, 2], [0, 2]), ([], [])):
        report = export_checkpoint(
            checkpoint, tmp_path / "b", dense_fallback=given, self_test=False, overwrite=True
        )
        banks = report.manifest.spec["feed_forward"]
        assert isinstance(banks, dict) and banks["dense_fallback_layers"] == layers


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("none", "dense in no layer"),
        ("0,2", "dense in layers 0, 2"),
        ("all", "dense in layers 0, 1, 2"),
        (None, "dense in layers 1"),
    ],
)
def test_the_command_line(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    shown: str,
) -> None:
    words = ["export", str(checkpoint), "-o", str(tmp_path / "b"), "--dry-run"]
    words += [] if text is None else ["--dense-fallback", text]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"2 of 8 channels, predictor rank 5, sigmoid gate, {shown}\n" in out
    assert main([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["feed_forward"]["bank_size"] == 8
    assert plan["feed_forward_bill"]["dense_bytes"] == 3 * 3 * 24 * 16 * 2


def test_the_command_line_names_its_flag(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(checkpoint), "-o", str(tmp_path / "b"), "--dense-fallback"]
    for text, found in (("5", "layer 5, and the decoder has 3"), ("", "neither a layer")):
        assert main([*words, text]) == 1
        shown = capsys.readouterr().err
        assert f"asked: --dense-fallback {text}\n" in shown and found in shown


def test_inspect_shows_the_banks(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_checkpoint(checkpoint, tmp_path / "b", dense_fallback=[0], self_test=False)
    for path, layers in ((checkpoint, "1"), (tmp_path / "b", "0")):
        assert main(["inspect", str(path)]) == 0
        shown = capsys.readouterr().out
        assert f"predictor rank 5, sigmoid gate, dense in layers {layers}\n" in shown
        assert ("if active channels are gathered" in shown) == (path == checkpoint)
