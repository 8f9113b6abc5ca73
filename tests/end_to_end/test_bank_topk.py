"""The golden bank-top-k checkpoint, from its tensors to logits, tokens and active channels.

Reference outputs come from plain torch with a stable sort in every bank, cross-checked with
transformers' Qwen2 layers (no public code or weights of this family exist). Many predictor logits
of one bank are exactly equal, so that a wrong rule for ties changes the logits.
"""

from pathlib import Path

import numpy as np
import pytest

from quatrain.exporter import export_checkpoint
from quatrain.plugins.bank_topk_ffn.reference import select_channels
from quatrain.runtime import LLM, SamplingParams

TOLERANCE = 1e-4  # of the largest logit, fp32 on both sides
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "bank_topk"
BANK_SIZE, TOP_K = 64, 16


@pytest.fixture(scope="module")
def golden():
    return np.load(GOLDEN / "golden.npz")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles by prefill chunk, and one with its embeddings on the host."""
    folder = tmp_path_factory.mktemp("bank_topk")
    for chunk in (1, 3, 512):
        export_checkpoint(
            GOLDEN / "checkpoint",
            folder / str(chunk),
            weights="copy",
            prefill_chunk=chunk,
            max_seq_len=64,
            self_test=chunk == 512,
        )
    export_checkpoint(
        GOLDEN / "checkpoint", folder / "host", weights="copy", embeddings="host", self_test=False
    )
    return folder


@pytest.mark.parametrize("bundle", ["1", "3", "512", "host"])
def test_logits(golden, bundles: Path, bundle: str):
    expected = golden["logits"]
    with LLM(bundles / bundle) as llm:
        found = llm.logits(golden["input_ids"])
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("bundle", ["1", "3", "512", "host"])
def test_greedy_tokens(golden, bundles: Path, bundle: str):
    prompt = golden["prompt_ids"][0].tolist()
    with LLM(bundles / bundle, self_test=bundle == "512") as llm:
        (result,) = llm.generate([prompt], GREEDY)
    assert list(result.token_ids) == golden["generated_ids"].tolist()


@pytest.mark.parametrize("bundle", ["3", "512", "host"])
def test_batch_of_unequal_prompts(golden, bundles: Path, bundle: str):
    prompt = golden["prompt_ids"][0].tolist()
    others = [[7], golden["input_ids"][0, :17].tolist()]
    with LLM(bundles / bundle) as llm:
        alone = [list(llm.generate([other], GREEDY)[0].token_ids) for other in others]
        short, mine, long = (
            list(result.token_ids)
            for result in llm.generate([others[0], prompt, others[1]], GREEDY)
        )
    assert mine == golden["generated_ids"].tolist()
    assert [short, long] == alone


def test_a_dense_fallback_changes_the_logits(golden, tmp_path: Path):
    """Else the golden logits would say nothing of what is left out."""
    expected = golden["logits"]
    for layers in ([0], [0, 1, 2, 3]):
        export_checkpoint(
            GOLDEN / "checkpoint",
            tmp_path / "b",
            weights="copy",
            dense_fallback=layers,
            self_test=False,
            overwrite=True,
        )
        with LLM(tmp_path / "b") as llm:
            found = llm.logits(golden["input_ids"])
        assert np.abs(found - expected).max() > 100 * TOLERANCE * np.abs(expected).max()


def test_active_channels_of_the_last_position(golden):
    mask = select_channels(golden["predictor_logits_last"], BANK_SIZE, TOP_K)
    np.testing.assert_array_equal(mask, golden["active_mask_last"].astype(bool))
    channels = np.array([[np.flatnonzero(layer) for layer in row] for row in mask])
    np.testing.assert_array_equal(channels, golden["active_channels_last"])
