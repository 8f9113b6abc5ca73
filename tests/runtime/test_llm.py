"""`LLM` on the golden model: generations, batches, routing, and sampling."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.runtime.llm_cases import GREEDY, run

from quatrain.runtime import LLM, GenerationResult, SamplingParams


@pytest.fixture(scope="module")
def golden(root: Path) -> dict[str, NDArray[Any]]:
    with np.load(root / "tests" / "golden" / "nvium" / "golden.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def llm(nvium_bundle: Path) -> Iterator[LLM]:
    """The golden model: exits, no tokenizer."""
    with LLM(nvium_bundle, backend="onnxruntime", threads=1) as opened:
        yield opened


def test_golden_generation_and_second_turn(llm: LLM, golden: dict[str, NDArray[Any]]) -> None:
    conversation = llm.conversation()
    for turn, length in (("", 64), ("turn2_", 16)):
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        result = conversation.send(golden[f"{turn}prompt_ids"][0], params)
        assert result.token_ids == golden[f"{turn}generated_ids"].tolist()
        assert result.exits == golden[f"{turn}generated_exit"].tolist()
        counts = np.bincount(golden[f"{turn}generated_exit"], minlength=4)
        assert result.exit_counts == counts.tolist()
        assert result.mean_depth == pytest.approx(counts @ [1, 2, 4, 5] / length)
        assert conversation.stats.exit_counts == result.exit_counts
    turns = ("prompt_ids", "generated_ids", "turn2_prompt_ids", "turn2_generated_ids")
    assert conversation.token_ids == [t for turn in turns for t in golden[turn].ravel().tolist()]


def test_golden_logits_are_those_of_the_mixture(llm: LLM, golden: dict[str, NDArray[Any]]) -> None:
    expected = golden["mix_logprobs"]
    logits = llm.logits(golden["input_ids"])
    assert logits.dtype == np.float32
    assert np.abs(logits - expected).max() <= 1e-4 * np.abs(expected).max()
    alone = llm.logits(golden["input_ids"][1].tolist())
    assert alone.shape == (1, *expected.shape[1:])
    np.testing.assert_allclose(alone[0], expected[1], atol=2e-4)


def test_more_sequences_than_a_batch_are_scored_in_several(
    llm: LLM, golden: dict[str, NDArray[Any]]
) -> None:
    ids = np.concatenate([golden["input_ids"]] * 3)[:5]
    assert llm.manifest.limits.max_batch == 4
    np.testing.assert_allclose(llm.logits(ids)[4], golden["mix_logprobs"][0], atol=2e-4)


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 1.3, "top_k": 40}])
def test_a_prompt_in_a_batch_gives_what_it_gives_alone(llm: LLM, params: dict[str, Any]) -> None:
    """More prompts than a batch, of different lengths, each with its own seed and length."""
    prompts = [[1, 410, 39], [7], [300, 2, 8, 8, 8, 8, 8], [5, 6], [511], [100] * 20]
    each = [
        SamplingParams(seed=i, max_tokens=3 + 2 * i, ignore_eos=True, **params)
        for i in range(len(prompts))
    ]
    together = llm.generate(prompts, each)
    for prompt, own, result in zip(prompts, each, together, strict=True):
        assert result == llm.generate(prompt, own)[0]
    assert llm.stats.output_tokens == each[-1].max_tokens


@pytest.mark.parametrize("exit_index", range(4))
def test_forced_exits(llm: LLM, exit_index: int) -> None:
    result = run(llm, [1, 5, 9], temperature=0, routing=exit_index, max_tokens=5, ignore_eos=True)
    assert result.exits == [exit_index] * 5
    assert result.mean_depth == [1, 2, 4, 5][exit_index]


def test_seeds_repeat_and_none_does_not(llm: LLM) -> None:
    def draw(seed: int | None) -> GenerationResult:
        return run(llm, [1, 5], seed=seed, max_tokens=20, ignore_eos=True)

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    assert draw(None) != draw(None)


def test_the_first_token_is_drawn_from_the_mixture(llm: LLM) -> None:
    """Routers first, token second, one generator: over many seeds that is the mixture itself."""
    mixture = np.exp(llm.logits([1, 5])[0, -1])
    params = [SamplingParams(seed=seed, max_tokens=1) for seed in range(800)]
    draws = [result.token_ids[0] for result in llm.generate([[1, 5]] * 800, params)]
    likely = np.argsort(-mixture)[:5]
    expected = mixture[likely] * 800
    counts = np.bincount(draws, minlength=512)[likely]
    assert (np.abs(counts - expected) < 4 * np.sqrt(expected)).all()


def test_max_deferred_changes_nothing(nvium_bundle: Path, golden: dict[str, NDArray[Any]]) -> None:
    for bound in (1, 2, 7):
        with LLM(nvium_bundle, backend="onnxruntime", threads=1, max_deferred=bound) as opened:
            params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
            [result] = opened.generate(golden["prompt_ids"], params)
        assert result.token_ids == golden["generated_ids"].tolist()


def test_stats_add_up(llm: LLM) -> None:
    results = llm.generate([[1, 2, 3], [4]], GREEDY)
    stats = llm.stats
    assert (stats.prompt_tokens, stats.output_tokens) == (4, 24)
    assert stats.exit_counts is not None and sum(stats.exit_counts) == 24
    assert stats.time_to_first_token is not None
    assert 0 < stats.time_to_first_token < stats.seconds
    assert stats.tokens_per_second == pytest.approx(24 / stats.seconds)
    assert 0 < stats.python_seconds < stats.seconds
    json.dumps([asdict(stats), *map(asdict, results)])  # plain values all through
