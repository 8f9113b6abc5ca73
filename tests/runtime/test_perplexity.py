"""Perplexity against a direct computation, in windows."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from quatrain.exporter.export import export_checkpoint
from quatrain.runtime import LLM, RequestError, perplexity


@pytest.fixture(scope="module")
def llm(nvium_bundle: Path) -> Iterator[LLM]:
    with LLM(nvium_bundle, backend="onnxruntime", threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def golden(root: Path) -> dict[str, NDArray[Any]]:
    with np.load(root / "tests" / "golden" / "nvium" / "golden.npz") as arrays:
        return dict(arrays)


def test_one_window_is_the_golden_mixture(llm: LLM, golden: dict[str, NDArray[Any]]) -> None:
    ids, logprobs = golden["input_ids"][0], golden["mix_logprobs"][0]
    expected = -logprobs[np.arange(47), ids[1:]].mean(dtype=np.float64)
    result = perplexity(llm, ids)
    assert result.perplexity == pytest.approx(math.exp(expected), rel=1e-4)
    assert (result.tokens, result.windows) == (47, 1)
    assert result.nll == pytest.approx(expected * 47, rel=1e-4)
    assert result.bits_per_byte is None


@pytest.mark.parametrize("window", [2, 7, 20, 48])
def test_every_token_is_predicted_once(
    llm: LLM, golden: dict[str, NDArray[Any]], window: int
) -> None:
    ids = golden["input_ids"][1].tolist()
    expected = 0.0
    seen: list[tuple[int, int]] = []
    for start in range(1, 48, window - 1):
        piece = ids[start - 1 : start + window - 1]
        logprobs = llm.logits(piece)[0].astype(np.float64)
        expected -= sum(logprobs[i, piece[i + 1]] for i in range(len(piece) - 1))
    result = perplexity(llm, ids, window=window, progress=lambda *done: seen.append(done))
    assert result.nll == pytest.approx(expected, rel=1e-5)
    assert result.tokens == 47 and result.window == window
    assert seen == [(i + 1, result.windows) for i in range(result.windows)]


@pytest.mark.parametrize("window", [0, 1, 10**6, True, 2.5, "9"])
def test_bad_windows_are_refused(llm: LLM, window: Any) -> None:
    with pytest.raises(RequestError, match="window="):
        perplexity(llm, [1, 2, 3], window=window)


@pytest.mark.parametrize("ids", [[], [5]])
def test_a_text_too_short_is_refused(llm: LLM, ids: list[int]) -> None:
    with pytest.raises(RequestError, match="longer text"):
        perplexity(llm, ids)


def test_a_bundle_too_short_for_any_window_is_refused(nvium_checkpoint: Path, tmp_path: Path):
    export_checkpoint(nvium_checkpoint, tmp_path / "bundle", max_seq_len=1)
    with LLM(tmp_path / "bundle") as llm, pytest.raises(RequestError, match="--max-seq-len"):
        perplexity(llm, [1, 2, 3])


def test_a_text_that_nothing_tokenizes(llm: LLM) -> None:
    with pytest.raises(RequestError) as caught:
        perplexity(llm, "some text")
    error = caught.value
    assert (error.asked, "no tokenizer" in error.found) == ("the perplexity of a text", True)
    assert "prompt" not in str(error) and error.fix.startswith("add tokenizer.json")
