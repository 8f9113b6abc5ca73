"""`quatrain inspect --activations`, as a user runs it."""

import errno
import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.exporter.diagnosis.bank_bundles import (
    LAYERS,
    VOCAB,
    export_banks,
    scramble,
    write_banks,
    write_text,
)

from quatrain.exporter import output_file
from quatrain.exporter.cli import main


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The predictor of layer 1 is random, layer 2 is dense."""
    folder = tmp_path_factory.mktemp("wrong")
    return export_banks(folder, scramble(1), dense_fallback_layers=[2])


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("right")
    np.save(folder / "ids.npy", write_text(export_banks(folder), 301))
    return folder / "ids.npy"


def inspect(*words: object) -> int:
    return main(["inspect", *map(str, words)])


def test_json_and_plot(
    bundle: Path, ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "plot.svg"
    assert inspect(bundle, "--activations", ids, "--plot", plot, "--check-weights", "--json") == 0
    captured = capsys.readouterr()
    document: dict[str, Any] = json.loads(captured.out)
    assert "pass 4 of 4 (layer 1 dense)" in captured.err
    assert (document["family"], document["tokens"], document["top_k"]) == ("bank_topk", 300, 4)
    assert document["suggestion"]["dense_fallback"] == "1-2"
    assert len(document["layers"]) == LAYERS
    assert "sha256" in document["files_compared"].values()
    assert document["layers"][0].keys() == {"layer", "is_dense", "use", "repair"}
    assert document["layers"][2] == {"layer": 2, "is_dense": True, "use": None, "repair": None}
    buckets = len(document["buckets"])
    assert len(document["layers"][0]["use"]["bucket_recall"]) == buckets == 2
    assert len(document["layers"][0]["repair"]["bucket_perplexity"]) == buckets
    texts = [element.text for element in ElementTree.parse(plot).iter() if element.text]
    for expected in ("Perplexity by position", "128-299", "layer 1 dense, the largest gain"):
        assert any(expected in text for text in texts)


def test_text(bundle: Path, ids: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(bundle, "--activations", ids, "--check-weights") == 0
    out = capsys.readouterr().out
    best = [line for line in out.splitlines() if line.endswith("<- best")]
    assert [line.split()[:3] for line in best] == [["layer", "1", "dense"]]
    assert "  2        dense" in out
    assert "quatrain export CHECKPOINT -o BUNDLE --dense-fallback 1-2" in out


def test_a_plot_takes_the_place_of_no_pipe_and_of_no_link(
    bundle: Path, ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link.svg"
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "plot.svg")
    assert inspect(bundle, "--activations", ids, "--plot", pipe) == 1
    assert "a device or a pipe" in capsys.readouterr().err and pipe.is_fifo()
    assert inspect(bundle, "--activations", ids, "--plot", link, "--tokens", 40) == 0
    assert link.is_symlink() and link.read_text().startswith("<svg")


def test_a_plot_that_cannot_be_written_is_told(
    bundle: Path, ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / f"{'x' * 250}.svg"  # the name is possible, that of its temporary file is not
    assert inspect(bundle, "--activations", ids, "--plot", plot, "--tokens", 40) == 1
    error = capsys.readouterr().err.splitlines()[-3:]
    assert error[0].startswith("asked: draw") and "too long" in error[1]
    assert not list(tmp_path.iterdir())


def test_what_was_found_is_not_lost_with_its_picture(
    bundle: Path,
    ids: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fill_disk(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(output_file, "write_file", fill_disk)
    words = (bundle, "--activations", ids, "--plot", tmp_path / "plot.svg", "--tokens", 40)
    assert inspect(*words, "--json") == 1
    document = json.loads(capfd.readouterr().out)
    assert document["layers"] and "No space" in document["error"]["found"]
    assert inspect(*words) == 1
    shown = capfd.readouterr()
    assert "usage entropy" in shown.out and "No space" in shown.err


def test_without_a_predictor_no_share_is_shown(
    tmp_path: Path, ids: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "plot.svg"
    bundle = export_banks(tmp_path, predictor_rank=None)
    assert inspect(bundle, "--activations", ids, "--plot", plot, "--tokens", 60) == 0
    assert "found" not in capsys.readouterr().out
    assert "found" not in plot.read_text()


def test_what_is_refused(
    bundle: Path, ids: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = write_banks(tmp_path / "checkpoint")
    text = tmp_path / "text.txt"
    text.write_text("some words")
    floats = tmp_path / "floats.npy"
    np.save(floats, np.ones(100))
    damaged = tmp_path / "damaged.npy"
    damaged.write_bytes(ids.read_bytes()[:200])
    for words, found in (
        ((checkpoint, "--activations", ids), "a checkpoint"),
        ((bundle, "--activations", text), "no tokenizer"),
        ((bundle, "--activations", floats), "an array of float64 [100]"),
        ((bundle, "--activations", damaged), "no NumPy array"),
        ((bundle, "--activations", tmp_path / "none.npy"), "No such file"),
        ((bundle, "--activations", ids, "--tokens", VOCAB - 40), "at least 32"),
        ((bundle, "--activations", ids, "--plot", tmp_path), "it is a folder"),
        ((bundle, "--activations", ids, "--plot", tmp_path / "no" / "p.svg"), "no folder"),
        ((bundle, "--activations", ids, "--plot", tmp_path / "p.html"), "as .svg or .png"),
        ((bundle, "--tokens", 99), "no --activations"),
        ((bundle, "--plot", "p.svg"), "no --activations"),
    ):
        assert inspect(*words) == 1
        assert found in capsys.readouterr().err
