"""Every kind of sparse feed-forward network, in whole models, against plain torch."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tests.exporter.decoder.bank_topk_reference import Banks, make_sparse
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

TOLERANCE = 1e-4  # of the largest logit, fp32 on both sides
VOCAB = 61
MODELS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
VARIANTS = {
    "sigmoid gate": ("llama", Banks()),
    "hard gate": ("qwen2", Banks(gate_mode="hard")),
    "native gate": ("qwen3", Banks(gate_mode="silu")),
    "banks of 16, relu between": ("llama", Banks(16, 4, 7, predictor_activation="relu")),
    "silu between": ("llama", Banks(predictor_activation="silu")),
    "one channel a bank": ("llama", Banks(4, 1)),
    "whole banks": ("llama", Banks(8, 8)),
    "a dense layer": ("llama", Banks(dense_fallback_layers=[1])),
    "a dense layer, hard gate": ("llama", Banks(gate_mode="hard", dense_fallback_layers=[0])),
    "dense layers, native gate": ("llama", Banks(gate_mode="silu", dense_fallback_layers=[0, 2])),
    "after the fact": ("llama", Banks(predictor_rank=None, gate_mode="silu")),
    "after the fact, a dense layer": (
        "qwen2",
        Banks(predictor_rank=None, gate_mode="silu", dense_fallback_layers=[2]),
    ),
}


def make_model(base: str, banks: Banks) -> PreTrainedModel:
    config_class, model_class = MODELS[base]
    config = config_class(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    model = model_class(config).eval()
    make_sparse(model, banks)
    return model


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    torch.manual_seed(3)
    base, banks = VARIANTS[request.param]
    model = make_model(base, banks)
    folder = tmp_path_factory.mktemp("variant")
    model.save_pretrained(folder / "checkpoint")
    path = folder / "checkpoint" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | banks.config()))
    export_checkpoint(folder / "checkpoint", folder / "bundle", prefill_chunk=7, self_test=False)
    return model, folder / "bundle"


@torch.no_grad()
def expected_logits(model: PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    return model(torch.from_numpy(ids)).logits.numpy()


def test_logits_equal_torch(variant: tuple[PreTrainedModel, Path]):
    model, bundle = variant
    ids = np.random.default_rng(0).integers(0, VOCAB, (2, 20))
    expected = expected_logits(model, ids)
    with LLM(bundle) as llm:
        found = llm.logits(ids)
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_greedy_tokens_equal_torch(variant: tuple[PreTrainedModel, Path]):
    """Prompts run many rows a call, which masks; what follows runs one, which gathers."""
    model, bundle = variant
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6, 5], [9]]
    expected = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(20):
            ids.append(int(expected_logits(model, np.array([ids]))[0, -1].argmax()))
        expected.append(ids[len(prompt) :])
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    with LLM(bundle) as llm:
        together = [list(r.token_ids) for r in llm.generate(prompts, params)]
        alone = [list(llm.generate([prompt], params)[0].token_ids) for prompt in prompts]
    assert alone == expected
    assert together == expected


def test_the_mask_matters():
    """A reference that kept every channel would not notice; this one does."""
    torch.manual_seed(3)
    sparse = make_model("llama", Banks())
    ids = np.random.default_rng(0).integers(0, VOCAB, (1, 9))
    before = expected_logits(sparse, ids)
    for layer in sparse.model.layers:
        layer.mlp.is_dense = True
    assert np.abs(expected_logits(sparse, ids) - before).max() > 0.1 * np.abs(before).max()


def iter_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and its branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from iter_graphs(attribute.g)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_fold_into_what_is_read(tmp_path: Path, dtype: torch.dtype):
    """A session transposes no weight as it runs, and has W_down once, for one row and for many."""
    make_model("llama", Banks()).to(dtype).save_pretrained(tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | Banks().config()))
    export_checkpoint(tmp_path / "checkpoint", tmp_path / "bundle", self_test=False)
    (graph,) = (tmp_path / "bundle").glob("*.cpu.*onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "bundle" / "optimized.onnx")
    onnxruntime.InferenceSession(graph, options)
    model = onnx.load(options.optimized_model_filepath, load_external_data=False)
    graphs = list(iter_graphs(model.graph))
    assert len(graphs) == 1 + 2 * 3
    weights = {tensor.name: tensor for graph in graphs for tensor in graph.initializer}
    moved = [n for g in graphs for n in g.node if n.op_type in ("Transpose", "Cast")]
    assert not [node.name for node in moved if node.input[0] in weights]
    sizes = Counter((t.data_type, tuple(t.dims)) for t in weights.values())
    stored = onnx.TensorProto.FLOAT16 if dtype == torch.float16 else onnx.TensorProto.FLOAT
    # By layer: W_gate and W_up by rows, to gather from, and transposed, to multiply with; W_down.
    expected = Counter({(stored, (48, 32)): 2 * 3, (onnx.TensorProto.FLOAT, (32, 48)): 2 * 3})
    expected[onnx.TensorProto.FLOAT, (48, 32)] += 3
    assert {size: sizes[size] for size in expected} == dict(expected)
    assert sum(sizes[t, s] for t, s in sizes if s in ((48, 32), (32, 48))) == 5 * 3
