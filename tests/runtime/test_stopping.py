"""Where a generation ends: EOS, stop tokens, and stop strings, while its text streams."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.runtime.formula_decoder import FormulaDecoder, make_row

from quatrain.runtime.generation import Meter, Row, generate_steps
from quatrain.runtime.tokenizer import Tokenizer


def follow(script: Sequence[int], num_prompt: int = 1) -> Callable[[list[int]], Any]:
    """Logits that say `script`, token after token, whatever was sampled."""

    def formula(tokens: list[int]) -> NDArray[np.float32]:
        logits = np.zeros(300, dtype=np.float32)
        logits[script[(len(tokens) - num_prompt) % len(script)]] = 9
        return logits

    return formula


def say(tokenizer: Tokenizer, text: str, **params: Any) -> tuple[Row, list[str]]:
    """Let the model say `text`; the row, and the delta of each step."""
    script = tokenizer.encode(text)
    row = make_row([0], tokenizer=tokenizer, **({"max_tokens": len(script)} | params))
    decoder = FormulaDecoder(1, follow(script))
    deltas = [row.delta for _ in generate_steps(decoder, [row], Meter(lambda: 0.0))]
    return row, deltas


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
