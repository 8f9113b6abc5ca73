"""Exported graphs against transformers, for every backbone and on random tiny models."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from quatrain.exporter.export import export_checkpoint
from quatrain.runtime import LLM, SamplingParams

# fp32 on both sides; the project's bound is 1e-4 of the largest logit.
TOLERANCE = 1e-4
SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "eos_token_id": 2,
    "bos_token_id": 1,
    # Wider than the usual 0.02, so that the logits of a random model are not all alike.
    "initializer_range": 0.2,
}
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 40,
    "rope_theta": 10000.0,
}


def make_llama(**settings: object) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**(SIZES | settings)))


def make_qwen2(**settings: object) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**(SIZES | settings)))


def make_qwen3(**settings: object) -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**(SIZES | {"head_dim": 16} | settings)))


BACKBONES = {
    "llama": lambda: make_llama(tie_word_embeddings=False),
    "llama-tied-mha": lambda: make_llama(tie_word_embeddings=True, num_key_value_heads=6),
    "llama-biases": lambda: make_llama(attention_bias=True, mlp_bias=True, head_dim=12),
    "llama3-rope": lambda: make_llama(rope_parameters=LLAMA3_SCALING),
    "linear-rope": lambda: make_llama(
        rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}
    ),
    "qwen2": lambda: make_qwen2(tie_word_embeddings=True),
    "qwen3": lambda: make_qwen3(tie_word_embeddings=False),
}


def randomize(model: PreTrainedModel) -> PreTrainedModel:
    """Give biases and norms values of their own, so that a swapped or forgotten one shows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model.eval()


@pytest.fixture(scope="module", params=BACKBONES)
def backbone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    torch.manual_seed(7)
    model = randomize(BACKBONES[request.param]())
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder / "checkpoint")
    for chunk in (512, 3, 1):
        export_checkpoint(
            folder / "checkpoint", folder / f"chunk{chunk}", prefill_chunk=chunk, self_test=False
        )
    return model, folder


def token_ids(rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, SIZES["vocab_size"], (rows, length))


def expected_logits(model: PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(ids)).logits.numpy()


@pytest.mark.parametrize("chunk", [512, 3, 1])
def test_logits_equal_transformers(backbone, chunk: int):
    model, folder = backbone
    ids = token_ids(2, 50)
    expected = expected_logits(model, ids)
    with LLM(folder / f"chunk{chunk}") as llm:
        found = llm.logits(ids)
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("chunk", [512, 3])
def test_greedy_tokens_equal_transformers(backbone, chunk: int):
    model, folder = backbone
    prompts = [token_ids(1, 9)[0].tolist(), token_ids(1, 23)[0].tolist(), [5]]
    expected = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(64):
            ids.append(int(expected_logits(model, np.array([ids]))[0, -1].argmax()))
        expected.append(ids[len(prompt) :])
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    with LLM(folder / f"chunk{chunk}") as llm:
        together = [list(r.token_ids) for r in llm.generate(prompts, params)]
        alone = [list(llm.generate([prompt], params)[0].token_ids) for prompt in prompts]
    assert together == expected
    assert alone == expected


def test_weights_are_linked_not_copied(backbone):
    _, folder = backbone
    source = folder / "checkpoint" / "model.safetensors"
    linked = folder / "chunk512" / "weights" / "model.safetensors"
    assert linked.samefile(source)


def test_bundle_without_weights_is_small(backbone):
    _, folder = backbone
    graphs = list(Path(folder / "chunk512").glob("*.onnx"))
    weights = (folder / "checkpoint" / "model.safetensors").stat().st_size
    assert {g.name for g in graphs} == {
        "decoder.cpu.float32.onnx",
        "decoder.engine.float16.onnx",
    }
    assert sum(g.stat().st_size for g in graphs) < 400_000
    assert weights > 200_000
