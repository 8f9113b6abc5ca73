"""`quatrain fit-drafter`: its flags, what it prints, and its errors."""

import json
from inspect import Parameter, signature
from pathlib import Path

import numpy as np
import pytest
from tests.exporter.checkpoint.folders import write_dense

from quatrain.exporter import fit_drafter
from quatrain.exporter.cli import main, make_parser


def make_words(folder: Path, num_tokens: int = 330) -> list[str]:
    """The words of a short fit, and the files that they name."""
    source = write_dense(folder / "dense")
    np.save(folder / "ids.npy", np.arange(num_tokens) * 7 % 48)
    words = ["fit-drafter", str(source), "-o", str(folder / "out")]
    words += ["--text", str(folder / "ids.npy"), "--window", "16"]
    return [*words, "--inner", "8", "--steps", "5", "--batch", "16"]


def test_flags_are_the_parameters_of_fit_drafter() -> None:
    words = ["fit-drafter", "checkpoint", "-o", "out", "--text", "text"]
    flags = vars(make_parser(words).parse_args(words))
    parameters = signature(fit_drafter).parameters
    assert flags.keys() - {"json", "run", "command"} == parameters.keys() - {"progress"}
    optional = {n: p.default for n, p in parameters.items() if p.default is not Parameter.empty}
    for name in optional.keys() - {"progress"}:
        assert flags[name] == optional[name], name


def test_it_tells_what_was_made_and_how_well_it_guesses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, output = make_words(tmp_path), tmp_path / "out"
    assert main(words) == 0
    captured = capsys.readouterr()
    shown = " ".join(captured.out.split())
    for fact in (
        f"{output}: hilp",
        "drafts on held-out text",
        "24 positions",
        "glu_cross, inner width 8, 896 parameters",
        "288 tokens, measured on 32 others",
        "5 steps of 16 roll-outs of 2",
        "1.8 kB new; the others are linked",
    ):
        assert fact in shown, shown
    assert "learning rate 0.001" in captured.err and "run backbone" in captured.err


def test_it_tells_what_the_model_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = make_words(tmp_path, num_tokens=110)
    words += ["--continue-tokens", "10", "--continue-temperature", "0.7"]
    assert main(words) == 0
    captured = capsys.readouterr()
    shown = " ".join(captured.out.split())
    for fact in (
        "drafts on what the model writes behind held-out text",
        "14 positions, fed the tokens it wrote",
        "256 tokens, of each window the last 10 the model's own (drawn at temperature 0.7),"
        " measured on 22 others",
    ):
        assert fact in shown, shown
    assert "write text" in captured.err


def test_json_and_an_error(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    words = make_words(tmp_path)
    assert main([*words, "--json"]) == 0
    document = json.loads(capfdbinary.readouterr().out)
    assert len(document["quality"]["draft_shares"]) == 4
    assert document["drafter"]["kind"] == "glu_cross"
    assert main(words) == 1
    assert b"something is there already" in capfdbinary.readouterr().err
