"""The decode loop over a small decoder whose logits are a formula of what it was fed."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers

from quatrain.runtime.decoding.decoder import StepOutput
from quatrain.runtime.generation import Meter, Row, generate_steps
from quatrain.runtime.requests import Request
from quatrain.runtime.sampling import SamplingParams
from quatrain.runtime.tokenizer import Tokenizer

VOCAB = 97


class FormulaDecoder:
    """A `Decoder` that remembers all it is fed; the logits are `formula(tokens of the row)`."""

    def __init__(
        self,
        num_rows: int,
        formula: Callable[[list[int]], NDArray[np.float32]],
        *,
        has_exits: bool = False,
    ) -> None:
        self.fed: list[list[int]] = [[] for _ in range(num_rows)]
        self.calls: list[list[int]] = []
        self._formula = formula
        self._has_exits = has_exits

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.array([len(row) for row in self.fed], dtype=np.int64)

    def feed(self, token_ids: Sequence[Sequence[int]]) -> StepOutput:
        assert len(token_ids) == len(self.fed)
        self.calls.append([len(tokens) for tokens in token_ids])
        for row, tokens in zip(self.fed, token_ids, strict=True):
            row += tokens
        logits = np.stack([self._formula(row) for row in self.fed])
        exits = np.array([len(row) % 3 for row in self.fed]) if self._has_exits else None
        return StepOutput(logits, exits)

    def flush(self) -> None:
        pass


def hash_tokens(tokens: list[int]) -> NDArray[np.float32]:
    """Logits that depend on every token and its place."""
    seed = sum((place + 1) * (token + 7) for place, token in enumerate(tokens))
    return np.random.default_rng(seed).normal(0, 2, VOCAB).astype(np.float32)


def follow(script: Sequence[int], num_prompt: int = 1) -> Callable[[list[int]], Any]:
    """Logits that say `script`, token after token, whatever was sampled."""

    def formula(tokens: list[int]) -> NDArray[np.float32]:
        logits = np.zeros(300, dtype=np.float32)
        logits[script[(len(tokens) - num_prompt) % len(script)]] = 9
        return logits

    return formula


def make_row(
    prompt: list[int],
    *,
    tokenizer: Tokenizer | None = None,
    eos: Sequence[int] = (),
    room: int = 10**6,
    **params: Any,
) -> Row:
    chosen = SamplingParams(**({"temperature": 0} | params))
    request = Request([], prompt, chosen, min(chosen.max_tokens, room))
    return Row(request, np.random.default_rng(chosen.seed), tokenizer, eos)


def run(decoder: FormulaDecoder, rows: Sequence[Row]) -> Meter:
    meter = Meter(lambda: 0.0)
    for _ in generate_steps(decoder, rows, meter):
        pass
    return meter


def generate_alone(prompt: list[int], **params: Any) -> list[int]:
    row = make_row(prompt, **params)
    run(FormulaDecoder(1, hash_tokens), [row])
    return row.token_ids


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One token per byte, so that text can be scripted."""
    vocabulary = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    raw.save(str(path))
    return Tokenizer(path, None, False)


def say(tokenizer: Tokenizer, text: str, **params: Any) -> tuple[Row, list[str]]:
    """Let the model say `text`; the row, and the delta of each step."""
    script = tokenizer.encode(text)
    row = make_row([0], tokenizer=tokenizer, **({"max_tokens": len(script)} | params))
    decoder = FormulaDecoder(1, follow(script))
    deltas = [row.delta for _ in generate_steps(decoder, [row], Meter(lambda: 0.0))]
    return row, deltas


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


# --- ends ---


def test_eos_ends_and_is_kept_in_the_ids_only(byte_tokenizer: Tokenizer) -> None:
    [eos] = byte_tokenizer.encode("!")
    row, deltas = say(byte_tokenizer, "abc!def", eos=[eos])
    assert row.finish_reason == "stop" and row.token_ids == byte_tokenizer.encode("abc!")
    assert deltas == ["a", "b", "c", ""]


def test_ignore_eos_goes_on_but_stop_tokens_still_count(byte_tokenizer: Tokenizer) -> None:
    eos, stop = byte_tokenizer.encode("!e")
    row, deltas = say(byte_tokenizer, "abc!def", eos=[eos], ignore_eos=True, stop_token_ids=[stop])
    assert row.finish_reason == "stop" and "".join(deltas) == "abc!d"


def test_eos_as_the_last_token_allowed_is_a_stop(byte_tokenizer: Tokenizer) -> None:
    [eos] = byte_tokenizer.encode("!")
    row, _ = say(byte_tokenizer, "ab!", eos=[eos], max_tokens=3)
    assert row.finish_reason == "stop"


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one END two", "END", "one "),
        ("one END two", ["two", "END"], "one "),
        ("EEEND", "END", "EE"),
        ("ababac", "abac", "ab"),
        ("xabcd", ["abcd", "c"], "xab"),  # the one completed first
        ("xaby", ["aby", "ab"], "x"),
        ("日本語です", "本語", "日"),
        ("END", "END", ""),
    ],
)
def test_text_ends_before_a_stop_string(
    byte_tokenizer: Tokenizer, text: str, stop: str | list[str], expected: str
) -> None:
    row, deltas = say(byte_tokenizer, text, stop=stop)
    assert row.finish_reason == "stop" and "".join(row.pieces) == "".join(deltas) == expected


def test_a_possible_beginning_of_a_stop_string_waits(byte_tokenizer: Tokenizer) -> None:
    _, deltas = say(byte_tokenizer, "aENxENDb", stop="END")
    assert deltas == ["a", "", "", "ENx", "", "", ""]
    row, deltas = say(byte_tokenizer, "aEN", stop="END")
    assert deltas == ["a", "", "EN"] and row.finish_reason == "length"


def test_what_waited_comes_out_at_eos(byte_tokenizer: Tokenizer) -> None:
    [eos] = byte_tokenizer.encode("!")
    row, deltas = say(byte_tokenizer, "aEN!", stop="END", eos=[eos])
    assert deltas == ["a", "", "", "EN"] and row.finish_reason == "stop"


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("abé", min_size=1, max_size=20),
    stop=st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stop_strings_against_a_plain_search(
    byte_tokenizer: Tokenizer, text: str, stop: list[str]
) -> None:
    row, deltas = say(byte_tokenizer, text, stop=stop)
    ends = [text.find(one) + len(one) for one in stop if one in text]
    cut = min((end for end in ends), default=None)
    if cut is None:
        assert "".join(deltas) == text and row.finish_reason == "length"
    else:
        begin = min(cut - len(one) for one in stop if text[:cut].endswith(one))
        assert "".join(deltas) == text[:begin] and row.finish_reason == "stop"


def test_a_character_that_never_gets_whole_is_replaced(byte_tokenizer: Tokenizer) -> None:
    row, deltas = say(byte_tokenizer, "a日", max_tokens=3)
    assert deltas == ["a", "", "\ufffd"] and row.finish_reason == "length"


def test_a_stop_string_completed_by_the_rest_counts(byte_tokenizer: Tokenizer) -> None:
    row, deltas = say(byte_tokenizer, "a日", max_tokens=3, stop="\ufffd")
    assert "".join(deltas) == "a" and row.finish_reason == "stop"


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
