"""Advice on sequences that are too long: an export for longer ones only where it would succeed."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quatrain.exporter.bench.setting import BenchSetting, check_setting
from quatrain.exporter.errors import ExportError
from quatrain.exporter.export import export_checkpoint
from quatrain.runtime import LLM, RequestError, SamplingParams, perplexity
from quatrain.runtime.decoding.history import TokenHistory

CHECKPOINT = Path(__file__).parents[2] / "samples" / "checkpoints" / "topics-dense"
LIMIT, POSITIONS = 64, 1024
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    bundle = tmp_path_factory.mktemp("length") / "bundle"
    export_checkpoint(CHECKPOINT, bundle, verify=False, self_test=False, max_seq_len=LIMIT)
    with LLM(bundle, backend="onnxruntime", threads=1) as opened:
        yield opened


def talk_on(llm: LLM, count: int) -> None:
    conversation = llm.conversation()
    conversation.send([5], GREEDY)
    conversation.send([5] * (count - 5), GREEDY)


def measure(llm: LLM, count: int) -> None:
    check_setting(BenchSetting((count - 2,), new_tokens=2, threads=1), llm.manifest, "it")


ASKED: dict[str, Callable[[LLM, int], Any]] = {
    "generate": lambda llm, count: llm.generate([5] * count, GREEDY),
    "conversation": talk_on,
    "logits": lambda llm, count: llm.logits([5] * count),
    "perplexity": lambda llm, count: perplexity(llm, [5] * 9, window=count),
    "bench": measure,
    "decoder": lambda llm, count: TokenHistory(llm.manifest, 1).append([0], [[5] * count]),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_a_longer_export_is_advised_where_the_model_has_room(
    llm: LLM, ask: Callable[[LLM, int], Any]
) -> None:
    with pytest.raises(RequestError, match=f"sequences of {LIMIT}|at most {LIMIT}") as caught:
        ask(llm, POSITIONS - 1)
    assert "larger --max-seq-len" in caught.value.fix


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_no_export_is_advised_that_would_be_refused(
    llm: LLM, ask: Callable[[LLM, int], Any]
) -> None:
    with pytest.raises(RequestError) as caught:
        ask(llm, POSITIONS + 1)
    assert "--max-seq-len" not in caught.value.fix
    assert f"the model has {POSITIONS} positions, so no export holds" in caught.value.fix


def test_the_export_refuses_what_is_not_advised(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=f"{POSITIONS} positions"):
        export_checkpoint(CHECKPOINT, tmp_path / "bundle", max_seq_len=POSITIONS + 1)


def test_a_window_that_is_none_is_no_matter_of_length(llm: LLM) -> None:
    for window in (1, 2.5, "9"):
        with pytest.raises(RequestError) as caught:
            perplexity(llm, [5] * 9, window=window)  # type: ignore[arg-type]
        assert caught.value.fix == f"give an integer from 2 to {LIMIT}"


def test_a_turn_too_long_may_go_to_another_conversation(llm: LLM) -> None:
    with pytest.raises(RequestError) as caught:
        talk_on(llm, POSITIONS)
    assert "begin another conversation" in caught.value.fix
    with pytest.raises(RequestError) as caught:
        llm.generate([5] * POSITIONS, GREEDY)
    assert "conversation" not in caught.value.fix


def test_output_is_cut_at_the_limit_and_says_so_by_its_length(llm: LLM) -> None:
    [result] = llm.generate([5] * 60, SamplingParams(temperature=0, ignore_eos=True))

    assert (result.finish_reason, result.output_tokens) == ("length", LIMIT - 60)
    for text in (SamplingParams.__doc__ or "",):
        assert re.search(r"max_tokens: Most tokens.*max_seq_len.*length", text, re.DOTALL)


def test_limits_that_are_as_large_as_they_can_be_are_not_to_be_raised(tmp_path: Path) -> None:
    """An export cuts them down to the sequence's length without a word."""
    export_checkpoint(
        CHECKPOINT.with_name("topics-hilp"),
        tmp_path / "hilp",
        drafter=True,
        verify=False,
        self_test=False,
        max_seq_len=6,
    )
    with pytest.raises(RequestError) as caught:
        LLM(tmp_path / "hilp", draft=9)
    assert caught.value.fix == "give an integer from 1 to 5"
    export_checkpoint(
        CHECKPOINT.with_name("topics-nvium"),
        tmp_path / "nvium",
        verify=False,
        self_test=False,
        max_seq_len=6,
    )
    with pytest.raises(RequestError) as caught:
        LLM(tmp_path / "nvium", max_deferred=9)
    assert caught.value.fix == "give an integer from 1 to 6"


def test_ids_of_an_array_count_by_row(llm: LLM) -> None:
    with pytest.raises(RequestError, match="the logits of 65 tokens"):
        llm.logits(np.full((3, LIMIT + 1), 5))
