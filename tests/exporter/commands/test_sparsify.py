"""`quatrain sparsify`: its flags, what it prints, and its errors."""

import json
from inspect import Parameter, signature
from pathlib import Path

import numpy as np
import pytest
from tests.exporter.checkpoint.folders import write_dense

from quatrain.exporter import sparsify_checkpoint
from quatrain.exporter.cli import main, make_parser


def test_flags_are_the_parameters_of_sparsify_checkpoint() -> None:
    words = ["sparsify", "checkpoint", "-o", "out"]
    flags = vars(make_parser(words).parse_args(words))
    parameters = signature(sparsify_checkpoint).parameters
    assert flags.keys() - {"json", "run", "command"} == parameters.keys() - {"progress"}
    optional = {n: p.default for n, p in parameters.items() if p.default is not Parameter.empty}
    for name in optional.keys() - {"progress"}:
        assert flags[name] == optional[name], name


def test_it_tells_channels_cost_and_what_predictors_find(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = write_dense(tmp_path / "dense"), tmp_path / "out"
    np.save(tmp_path / "ids.npy", np.arange(330) * 7 % 48)
    words = ["sparsify", str(source), "-o", str(output), "--bank-size", "8", "--top-k", "2"]
    words += ["--text", str(tmp_path / "ids.npy"), "--window", "16", "--rank", "4"]
    assert main(words) == 0
    captured = capsys.readouterr()
    shown = " ".join(captured.out.split())
    for fact in (
        f"{output}: bank_topk",
        "by chance 25.0%",
        "6 of 24 run: 2 of every 8",
        "predictors of rank 4, which take 13.9% of the dense network's products",
        "288 tokens, measured on 32 others",
        "960 B new; the others are linked",
    ):
        assert fact in shown
    assert "rank 4: 13.9% of the dense cost" in captured.err
    assert "measure on held-out text" in captured.err


def test_dense_topk_as_json_and_an_error(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    source, output = write_dense(tmp_path / "dense"), tmp_path / "out"
    words = ["sparsify", str(source), "-o", str(output), "--bank-size", "8", "--top-k", "2"]
    assert main([*words, "--method", "dense-topk", "--json"]) == 0
    document = json.loads(capfdbinary.readouterr().out)
    assert document["banks"]["predictor_rank"] is None and document["layers"] == []
    assert main(words) == 1
    assert b"something is there already" in capfdbinary.readouterr().err
