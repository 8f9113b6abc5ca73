"""The golden Hidden Decoding checkpoints, from their public format to logits and tokens.

Reference outputs come from plain torch and transformers without a cache.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from quatrain.exporter import export_checkpoint
from quatrain.runtime import LLM, SamplingParams

TOLERANCE = 1e-4  # of the largest logit, fp32 on both sides
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
GOLDEN = Path(__file__).resolve().parents[1] / "golden"
NAMES = ("hidden_decoding", "hidden_decoding_sfa", "hidden_decoding_mirror")


@pytest.fixture(scope="module", params=NAMES)
def golden(request: pytest.FixtureRequest):
    return request.param, np.load(GOLDEN / request.param / "golden.npz")


@pytest.fixture(scope="module")
def bundles(golden, tmp_path_factory: pytest.TempPathFactory):
    """Bundles of one golden checkpoint by prefill chunk, and one with its tables on the host."""
    name, _ = golden
    folder = tmp_path_factory.mktemp(name)
    checkpoint = GOLDEN / name / "checkpoint"
    for chunk in (1, 3, 512):
        export_checkpoint(
            checkpoint,
            folder / str(chunk),
            weights="copy",
            prefill_chunk=chunk,
            max_seq_len=64,
            self_test=chunk == 512,
        )
    export_checkpoint(
        checkpoint, folder / "host", weights="copy", embeddings="host", self_test=False
    )
    return folder


@pytest.mark.parametrize("bundle", ["1", "3", "512", "host"])
def test_logits(golden, bundles: Path, bundle: str):
    expected = golden[1]["logits"]
    with LLM(bundles / bundle) as llm:
        found = llm.logits(golden[1]["input_ids"])
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("bundle", ["1", "3", "512", "host"])
def test_greedy_tokens(golden, bundles: Path, bundle: str):
    prompt = golden[1]["prompt_ids"][0].tolist()
    with LLM(bundles / bundle, self_test=bundle == "512") as llm:
        (result,) = llm.generate([prompt], GREEDY)
    assert list(result.token_ids) == golden[1]["generated_ids"].tolist()


def test_without_the_cache(golden, bundles: Path):
    """The whole prefix again for every token, as the reference did."""
    ids = golden[1]["prompt_ids"][0].tolist()
    with LLM(bundles / "512") as llm:
        for _ in range(40):
            ids.append(int(llm.logits(np.array([ids]))[0, -1].argmax()))
    assert ids[12:] == golden[1]["generated_ids"].tolist()


@pytest.mark.parametrize("bundle", ["3", "512", "host"])
def test_batch_of_unequal_prompts(golden, bundles: Path, bundle: str):
    prompt = golden[1]["prompt_ids"][0].tolist()
    others = [[7], golden[1]["input_ids"][0, :17].tolist()]
    with LLM(bundles / bundle) as llm:
        alone = [list(llm.generate([other], GREEDY)[0].token_ids) for other in others]
        short, mine, long = (
            list(result.token_ids)
            for result in llm.generate([others[0], prompt, others[1]], GREEDY)
        )
    assert mine == golden[1]["generated_ids"].tolist()
    assert [short, long] == alone


def test_second_turn_goes_on_from_the_cache(golden, bundles: Path):
    prompt = golden[1]["prompt_ids"][0].tolist()
    generated = golden[1]["generated_ids"].tolist()
    with LLM(bundles / "3") as llm:
        conversation = llm.conversation()
        first = conversation.send(prompt, replace(GREEDY, max_tokens=15))
        again = conversation.send(generated[15:20], replace(GREEDY, max_tokens=20))
    assert list(first.token_ids) == generated[:15]
    assert list(again.token_ids) == generated[20:40]


def test_sampling_with_one_seed_is_the_same_alone_and_in_a_batch(golden, bundles: Path):
    prompts = [golden[1]["prompt_ids"][0].tolist(), [5, 9]]
    params = SamplingParams(temperature=0.9, top_k=40, top_p=0.95, seed=3, max_tokens=12)
    with LLM(bundles / "512") as llm:
        together = [list(result.token_ids) for result in llm.generate(prompts, params)]
        alone = [list(llm.generate([prompt], params)[0].token_ids) for prompt in prompts]
    assert together == alone


def test_streaming_gives_the_tokens_of_generate(golden, bundles: Path):
    prompt = golden[1]["prompt_ids"][0].tolist()
    with LLM(bundles / "512") as llm:
        streamed = [token for delta in llm.stream(prompt, GREEDY) for token in delta.token_ids]
    assert streamed == golden[1]["generated_ids"].tolist()
