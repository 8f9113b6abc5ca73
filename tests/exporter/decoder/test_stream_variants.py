"""Every shape a model with streams may have, against a plain torch reference that skips nothing."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.exporter.decoder.bank_topk_reference import Banks, make_sparse
from tests.exporter.decoder.stream_reference import Shape, run_reference
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from quatrain.exporter.export import export_checkpoint
from quatrain.runtime import LLM, SamplingParams

TOLERANCE = 1e-4  # of the largest logit, fp32 on both sides
VOCAB, HIDDEN, HEAD_DIM = 67, 32, 8
MODELS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


@dataclass(frozen=True)
class Variant:
    """`pattern` has a letter for each layer: i intra-stream, c cross-stream."""

    pattern: str
    n: int = 3
    base: str = "llama"
    mirrors: dict[int, int] = field(default_factory=dict)
    windows: tuple[int | None, ...] | None = None
    tied: bool = False
    kv_heads: int = 2
    banks: Banks | None = None
    export: dict[str, Any] = field(default_factory=dict)


VARIANTS = {
    "all cross-stream": Variant("cccc"),
    "all intra-stream": Variant("iiii"),
    "factorized": Variant("iciic", base="qwen3", n=4),
    "intra-stream at the end": Variant("icii"),
    "first layer across": Variant("ciic", n=2, base="qwen2"),
    "eight streams, one key head": Variant("ic", n=8, kv_heads=1),
    "one stream": Variant("ic", n=1, mirrors={1: 0}),
    "mirrors at the end": Variant("icciic", mirrors={5: 0, 4: 1}, tied=True),
    "mirrors of the same layer": Variant("ccii", mirrors={3: 0, 2: 0}),
    "a plain layer behind a mirror": Variant("ccci", mirrors={2: 0}),
    "a mirror of a mirror": Variant("icic", mirrors={2: 0, 3: 2}, base="qwen3"),
    "windows": Variant("icicic", windows=(4, 7, None, None, 1, 5)),
    "windows behind the last cross-stream layer": Variant("cii", windows=(5, 3, 2)),
    "windows and mirrors": Variant("icc", windows=(None, 9, 6), mirrors={2: 0}),
    "tables on the host": Variant("ici", export={"embeddings": "host"}),
    "tables on the host, tied": Variant("ci", tied=True, export={"embeddings": "host"}),
    "sparse feed-forward": Variant("icii", banks=Banks(dense_fallback_layers=[2])),
    "tied, first table only in the head": Variant("ii", tied=True),
}


class Model:
    """A random checkpoint on disk and what it computes."""

    def __init__(self, variant: Variant, folder: Path) -> None:
        torch.manual_seed(11)
        layers = len(variant.pattern)
        config_class, model_class = MODELS[variant.base]
        config = config_class(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            intermediate_size=40,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=variant.kv_heads,
            head_dim=HEAD_DIM,
            max_position_embeddings=64,
            rms_norm_eps=1e-5,
            tie_word_embeddings=variant.tied,
            initializer_range=0.2,
        )
        model = model_class(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
        self.feed_forwards = None
        if variant.banks is not None:
            make_sparse(model, variant.banks)
            self.feed_forwards = [layer.mlp for layer in model.model.layers]
        self.weights = {k: v.detach() for k, v in model.state_dict().items()}
        for stream in range(1, variant.n):
            name = f"model.scale_seq_embed_tokens_list.{stream - 1}.weight"
            self.weights[name] = torch.randn(VOCAB, HIDDEN) * 0.2
        if variant.tied:
            self.weights.pop("lm_head.weight", None)
        self.shape = Shape(
            layers,
            4,
            variant.kv_heads,
            HEAD_DIM,
            variant.n,
            tuple(letter == "i" for letter in variant.pattern),
            variant.mirrors,
            variant.windows or (None,) * layers,
        )
        folder.mkdir()
        save_file(self.weights, folder / "model.safetensors")
        described = config.to_dict() | describe_streams(variant)
        (folder / "config.json").write_text(json.dumps(described))

    @torch.no_grad()
    def logits(self, ids: np.ndarray) -> np.ndarray:
        tokens = torch.from_numpy(ids)
        return run_reference(self.weights, self.shape, tokens, self.feed_forwards).numpy()


def describe_streams(variant: Variant) -> dict[str, Any]:
    config: dict[str, Any] = {
        "scale_seq_times": variant.n - 1,
        "scale_seq_attn_per_suffix_layerwise": [c == "i" for c in variant.pattern],
        "kv_mirror_layers": list(variant.mirrors),
        "kv_mirror_imitated_layers": list(variant.mirrors.values()),
    }
    if variant.windows:
        windows = [-1 if window is None else window for window in variant.windows]
        config["sliding_window_size_layerwise"] = windows
    return config | (variant.banks.config() if variant.banks else {})


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    chosen = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp("variant")
    model = Model(chosen, folder / "checkpoint")
    for chunk in (64, 3):
        export_checkpoint(
            folder / "checkpoint",
            folder / f"chunk{chunk}",
            prefill_chunk=chunk,
            self_test=False,
            **chosen.export,
        )
    return model, folder


def token_ids(rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, VOCAB, (rows, length))


@pytest.mark.parametrize("chunk", [64, 3])
def test_logits_equal_the_reference(variant: tuple[Model, Path], chunk: int):
    model, folder = variant
    ids = token_ids(2, 20)
    expected = model.logits(ids)
    with LLM(folder / f"chunk{chunk}") as llm:
        found = llm.logits(ids)
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_greedy_tokens_equal_the_reference(variant: tuple[Model, Path]):
    model, folder = variant
    prompts = [token_ids(1, length)[0].tolist() for length in (9, 1, 14)]
    expected = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(16):
            ids.append(int(model.logits(np.array([ids]))[0, -1].argmax()))
        expected.append(ids[len(prompt) :])
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    with LLM(folder / "chunk3") as llm:
        together = [list(r.token_ids) for r in llm.generate(prompts, params)]
        alone = [list(llm.generate([prompt], params)[0].token_ids) for prompt in prompts]
    assert together == expected
    assert alone == expected


def test_reference_is_the_public_view(tmp_path: Path):
    """The reference itself: all cross-stream is a plain decoder fed with the interleaved rows."""
    model = Model(Variant("ccc", base="qwen3"), tmp_path / "checkpoint")
    ids = torch.from_numpy(token_ids(2, 11))
    config = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    plain = Qwen3ForCausalLM(Qwen3Config(**config)).eval()
    plain.load_state_dict(model.weights, strict=False)
    names = [f"model.scale_seq_embed_tokens_list.{s}.weight" for s in range(2)]
    tables: list[Tensor] = [model.weights[k] for k in ("model.embed_tokens.weight", *names)]
    rows = torch.stack([table[ids] for table in tables], 2).flatten(1, 2)
    with torch.no_grad():
        expected = plain(inputs_embeds=rows).logits[:, 2::3].numpy()
    found = model.logits(ids.numpy())
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
