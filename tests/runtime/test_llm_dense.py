"""`LLM` on a dense model, with transformers as a reference."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.runtime.llm_cases import run
from transformers import LlamaConfig, LlamaForCausalLM

from quatrain.exporter import export_checkpoint
from quatrain.runtime import LLM, RequestError, SamplingParams


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, LlamaForCausalLM]]:
    """A random Llama, ours and transformers'."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
    )
    reference = LlamaForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("dense")
    reference.save_pretrained(folder / "checkpoint")
    export_checkpoint(folder / "checkpoint", folder / "bundle", max_batch=3)
    with LLM(folder / "bundle", backend="onnxruntime", threads=1) as opened:
        yield opened, reference


def test_dense_greedy_equals_transformers(dense: tuple[LLM, LlamaForCausalLM]) -> None:
    llm, reference = dense
    prompts = [[1, 17, 230], [5], list(range(40, 70))]
    results = llm.generate(
        prompts, SamplingParams(temperature=0, max_tokens=24, repetition_penalty=1.2)
    )
    for prompt, result in zip(prompts, results, strict=True):
        whole = reference.generate(
            torch.tensor([prompt]), max_new_tokens=24, do_sample=False, repetition_penalty=1.2
        )
        assert result.token_ids == whole[0, len(prompt) :].tolist()
        assert result.exits is result.exit_counts is result.mean_depth is None


def test_dense_logits_equal_transformers(dense: tuple[LLM, LlamaForCausalLM]) -> None:
    llm, reference = dense
    ids = np.random.default_rng(0).integers(0, 300, (2, 30))
    with torch.no_grad():
        expected = reference(torch.from_numpy(ids)).logits.numpy()
    assert np.abs(llm.logits(ids) - expected).max() <= 1e-4 * np.abs(expected).max()


def test_dense_models_refuse_what_only_exits_have(dense: tuple[LLM, LlamaForCausalLM]) -> None:
    llm, _ = dense
    for routing in ("argmax", "sample", 0):
        with pytest.raises(RequestError, match="no exits"):
            run(llm, [1], routing=routing)
    with pytest.raises(RequestError, match="nothing is deferred"):
        LLM(llm._served.model.bundle, backend="onnxruntime", max_deferred=3)
