"""The decode loop over a small decoder whose logits are a formula of what it was fed."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.runtime.formula_decoder import VOCAB, FormulaDecoder, hash_tokens, make_row, run

from quatrain.runtime.decoding.decoder import StepOutput
from quatrain.runtime.generation import Meter, Row, generate_steps
from quatrain.runtime.requests import Request
from quatrain.runtime.sampling import SamplingParams
from quatrain.runtime.tokenizer import Tokenizer


def generate_alone(prompt: list[int], **params: Any) -> list[int]:
    row = make_row(prompt, **params)
    run(FormulaDecoder(1, hash_tokens), [row])
    return row.token_ids


# --- the loop ---


def test_a_prompt_is_fed_once_then_token_by_token_and_the_last_not_at_all() -> None:
    decoder = FormulaDecoder(1, hash_tokens)
    row = make_row([5, 6, 7], max_tokens=4)
    run(decoder, [row])
    assert decoder.calls == [[3], [1], [1], [1]]
    assert decoder.fed == [[5, 6, 7, *row.token_ids[:-1]]]
    assert len(row.token_ids) == 4 and row.finish_reason == "length"


def test_what_the_decoder_already_holds_is_not_fed_again() -> None:
    decoder = FormulaDecoder(1, hash_tokens)
    decoder.feed([[1, 2]])
    row = Row(
        Request([1, 2, 3], [4], SamplingParams(temperature=0), 1),
        np.random.default_rng(0),
        None,
        (),
    )
    run(decoder, [row])
    assert decoder.fed == [[1, 2, 3, 4]]


@settings(max_examples=50, deadline=None)
@given(
    prompts=st.lists(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9), min_size=1, max_size=4
    ),
    lengths=st.lists(st.integers(1, 12), min_size=4, max_size=4),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_each_row_of_a_batch_gives_what_it_gives_alone(
    prompts: list[list[int]], lengths: list[int], temperature: float
) -> None:
    params = [
        {"max_tokens": length, "temperature": temperature, "seed": place, "top_p": 0.9}
        for place, length in enumerate(lengths[: len(prompts)])
    ]
    rows = [make_row(p, eos=[3], **q) for p, q in zip(prompts, params, strict=True)]
    decoder = FormulaDecoder(len(rows), hash_tokens)
    run(decoder, rows)
    for row, prompt, asked in zip(rows, prompts, params, strict=True):
        assert row.token_ids == generate_alone(prompt, eos=[3], **asked)
    for place, row in enumerate(rows):  # finished rows are fed nothing
        assert decoder.fed[place] == row.request.prompt_ids + row.token_ids[:-1]


def test_a_row_without_work_is_fed_nothing() -> None:
    decoder = FormulaDecoder(2, hash_tokens)
    rows = [make_row([1], max_tokens=0), make_row([2], max_tokens=2)]
    run(decoder, rows)
    assert decoder.calls == [[0, 1], [0, 1]]
    assert rows[0].token_ids == [] and rows[0].finish_reason == "length"


def test_nothing_runs_where_nothing_is_asked() -> None:
    decoder = FormulaDecoder(1, hash_tokens)
    run(decoder, [make_row([1], max_tokens=0)])
    assert decoder.calls == []


def test_repetition_penalty_sees_prompt_and_output() -> None:
    def formula(tokens: list[int]) -> NDArray[np.float32]:
        return np.arange(10, 10 + VOCAB).astype(np.float32)

    row = make_row([VOCAB - 1], max_tokens=3, repetition_penalty=1000.0)
    run(FormulaDecoder(1, formula), [row])
    assert row.token_ids == [VOCAB - 2, VOCAB - 3, VOCAB - 4]


def test_exits_are_recorded_per_token() -> None:
    row = make_row([1, 2], max_tokens=4)
    run(FormulaDecoder(1, hash_tokens, has_exits=True), [row])
    assert row.exits == [2, 0, 1, 2]


# --- cost ---


def test_a_meter_counts_the_loop_and_not_its_reader() -> None:
    busy = 0.0

    def formula(tokens: list[int]) -> NDArray[np.float32]:
        nonlocal busy
        time.sleep(0.002)
        busy += 0.002
        return np.zeros(VOCAB, dtype=np.float32)

    meter = Meter(lambda: busy)
    for _ in generate_steps(FormulaDecoder(1, formula), [make_row([1], max_tokens=3)], meter):
        time.sleep(0.02)
    assert 0.006 <= meter.seconds < 0.02 and meter.busy_seconds == pytest.approx(0.006)
    assert meter.time_to_first_token == meter.prefill_seconds < meter.seconds


def test_the_loop_costs_little(byte_tokenizer: Tokenizer) -> None:
    """Under 60 us a greedy step at batch 1 and a vocabulary of 49152, argmax and text included."""
    logits = np.random.default_rng(0).normal(size=(1, 49152)).astype(np.float32)
    logits[0, 40] = 99
    output = StepOutput(logits)

    class Instant(FormulaDecoder):
        def feed(self, token_ids: Sequence[Sequence[int]]) -> StepOutput:
            return output

    def measure() -> float:
        row = make_row([1], tokenizer=byte_tokenizer, max_tokens=200, eos=[2], stop=["\n\n", "END"])
        start = time.perf_counter()
        run(Instant(1, hash_tokens), [row])
        return (time.perf_counter() - start) / 200

    assert min(measure() for _ in range(10)) < 60e-6
