"""`LLM` with text: prompts, streams, limits, and perplexity."""

from typing import Any

import numpy as np
import pytest
from tests.runtime.llm_cases import GREEDY, TEXT, run

from quatrain.runtime import LLM, RequestError, SamplingParams, perplexity


@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 5}, {"seed": 1, "stop": "e"}])
def test_a_stream_is_generate_in_pieces(text_llm: LLM, params: dict[str, Any]) -> None:
    asked = SamplingParams(max_tokens=30, **params)
    *early, last = deltas = list(text_llm.stream("The quick", asked))
    stats = text_llm.stats
    [whole] = text_llm.generate("The quick", asked)
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [t for delta in deltas for t in delta.token_ids] == whole.token_ids
    assert [e for delta in deltas for e in delta.exits or []] == whole.exits
    assert {delta.finish_reason for delta in early} <= {None}
    assert {delta.output_tokens for delta in early} <= {None}
    assert (last.finish_reason, last.prompt_tokens, last.output_tokens) == (
        whole.finish_reason,
        whole.prompt_tokens,
        whole.output_tokens,
    )
    assert stats.output_tokens == whole.output_tokens


def test_text_prompts_begin_with_bos(text_llm: LLM) -> None:
    ids = text_llm.encode("The quick")
    assert ids[0] == 1 and ids.count(1) == 1
    assert text_llm.generate("The quick", GREEDY) == text_llm.generate(ids, GREEDY)
    assert text_llm.generate("", GREEDY) == text_llm.generate([1], GREEDY)


def test_a_stream_may_be_left(text_llm: LLM) -> None:
    stream = text_llm.stream("The quick", GREEDY)
    next(stream)
    del stream
    assert text_llm.stats.output_tokens == 1


def test_streams_may_interleave(text_llm: LLM) -> None:
    alone = [list(text_llm.stream(prompt, GREEDY)) for prompt in ("The", "dog")]
    both = [text_llm.stream(prompt, GREEDY) for prompt in ("The", "dog")]
    assert [list(pair) for pair in zip(*zip(*both, strict=True), strict=True)] == alone


def test_no_tokens_asked_is_no_work(text_llm: LLM) -> None:
    params = SamplingParams(max_tokens=0)
    busy = text_llm._served.model.busy_seconds
    [result] = text_llm.generate("The", params)
    assert (result.text, result.token_ids, result.finish_reason) == ("", [], "length")
    [delta] = text_llm.stream("The", params)
    assert (delta.text, delta.finish_reason, delta.output_tokens) == ("", "length", 0)
    assert text_llm._served.model.busy_seconds == busy
    assert text_llm.stats.time_to_first_token is None


def test_the_sequence_limit_ends_a_generation(text_llm: LLM) -> None:
    result = run(text_llm, [5] * 40, temperature=0, max_tokens=100, ignore_eos=True)
    assert result.output_tokens == 8 and result.finish_reason == "length"


def test_nothing_asked_nothing_given(text_llm: LLM) -> None:
    assert text_llm.generate([]) == []


def test_perplexity_of_text_counts_its_bytes(text_llm: LLM) -> None:
    """Every window begins with BOS, and every token of the text is predicted."""
    ids = text_llm.encode(TEXT)
    result = perplexity(text_llm, TEXT, window=20)
    assert result.tokens == len(ids) - 1 and result.windows == -(-result.tokens // 19)
    windows = [[1, *ids[start : start + 19]] for start in range(1, len(ids), 19)]
    nll = sum(perplexity(text_llm, window).nll for window in windows)
    assert result.nll == pytest.approx(nll, rel=1e-6)
    bits = nll / np.log(2) / len(TEXT.encode())
    assert result.bits_per_byte == pytest.approx(bits, rel=1e-6)
    assert perplexity(text_llm, TEXT).window == 48  # the bundle's limit
    with pytest.raises(RequestError, match="longer text"):
        perplexity(text_llm, "")
