"""Conversations: turns equal one long prompt, whatever happens in between."""

from typing import Any

import pytest
from tests.runtime.llm_cases import GREEDY

from quatrain.runtime import LLM, RequestError, SamplingParams


def test_turns_equal_one_long_prompt(text_llm: LLM) -> None:
    """Later text gets no BOS; the parameters, routing and seed included, are each turn's own."""
    conversation = text_llm.conversation()
    said: list[int] = []
    for turn, params in enumerate(
        (
            SamplingParams(temperature=0, max_tokens=4),
            SamplingParams(seed=7, max_tokens=3, routing="argmax"),
            SamplingParams(temperature=0, max_tokens=2, routing=0),
            SamplingParams(seed=8, max_tokens=5, repetition_penalty=1.5),
        )
    ):
        result = conversation.send("dog", params)
        prompt = text_llm.encode("dog")[min(turn, 1) :]
        said += prompt
        assert result.prompt_tokens == len(prompt)
        [alone] = text_llm.generate(said, params)
        assert (result.text, result.token_ids, result.exits) == (
            alone.text,
            alone.token_ids,
            alone.exits,
        )
        said += result.token_ids
        assert conversation.token_ids == said
    assert said.count(1) == 1


def test_a_turn_feeds_only_what_is_new(text_llm: LLM) -> None:
    conversation = text_llm.conversation()
    conversation.send([5] * 20, GREEDY)
    decoder = conversation._decoder
    assert decoder is not None and decoder.lengths.tolist() == [31]
    conversation.send([6], SamplingParams(max_tokens=1))
    assert conversation._decoder is decoder and decoder.lengths.tolist() == [33]


def test_a_turn_of_no_tokens_is_heard_later(text_llm: LLM) -> None:
    conversation = text_llm.conversation()
    conversation.send([5, 6], SamplingParams(max_tokens=0))
    result = conversation.send([7], GREEDY)
    assert result.token_ids == text_llm.generate([5, 6, 7], GREEDY)[0].token_ids
    assert conversation.send([], GREEDY).output_tokens == 12  # and on, with nothing added


def test_a_streamed_turn_left_early_is_kept(text_llm: LLM) -> None:
    conversation = text_llm.conversation()
    stream = conversation.stream([5, 6], GREEDY)
    heard = [t for _ in range(3) for t in next(stream).token_ids]
    with pytest.raises(RequestError, match="still being streamed"):
        conversation.send([7], GREEDY)
    del stream
    assert conversation.token_ids == [5, 6, *heard]
    expected = text_llm.generate([5, 6, *heard, 7], GREEDY)[0].token_ids
    assert conversation.send([7], GREEDY).token_ids == expected


def test_a_failed_turn_leaves_the_conversation_as_it_was(
    text_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = text_llm.conversation()
    conversation.send([5, 6], GREEDY)
    before = conversation.token_ids
    with pytest.raises(RequestError):
        conversation.send([9999], GREEDY)
    with monkeypatch.context() as patch:
        decoder = conversation._decoder
        assert decoder is not None
        calls = iter([decoder.feed])

        def feed(token_ids: Any) -> Any:
            """One step, then Ctrl-C."""
            try:
                return next(calls)(token_ids)
            except StopIteration:
                raise KeyboardInterrupt from None

        patch.setattr(decoder, "feed", feed)
        with pytest.raises(KeyboardInterrupt):
            conversation.send([8], GREEDY)
    assert conversation.token_ids == before
    expected = text_llm.generate([*before, 7], GREEDY)[0].token_ids
    assert conversation.send([7], GREEDY).token_ids == expected


def test_a_conversation_knows_its_limit(text_llm: LLM) -> None:
    conversation = text_llm.conversation()
    conversation.send([5] * 30, GREEDY)
    with pytest.raises(RequestError, match="after 42 of earlier turns") as caught:
        conversation.send([5] * 6, GREEDY)
    assert "--max-seq-len" in caught.value.fix
    assert conversation.send([5] * 4, GREEDY).output_tokens == 2
