"""Tiny bank-top-k bundles whose predictors are known to be right, wrong or constant."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.exporter.checkpoint.folders import Arrays, random_tensors, write_checkpoint

from quatrain.exporter import export_checkpoint
from quatrain.exporter.spec import Backbone, BankTopK, DecoderSpec, Streams
from quatrain.runtime import LLM, SamplingParams

HIDDEN, INNER, LAYERS, VOCAB, BANK = 16, 32, 3, 48, 8
POSITIONS = 320
BACKBONE = Backbone("llama", VOCAB, HIDDEN, INNER, LAYERS, 4, 2, 4, POSITIONS, rms_norm_eps=1e-5)
Change = Callable[[Arrays], None]


def write_banks(
    folder: Path, change: Change | None = None, *, num_streams: int = 1, **settings: Any
) -> Path:
    """Write a checkpoint whose predictors are the gate itself: of rank d, with u as their logits.

    Gate and up projection are one matrix with large numbers, so that |SiLU(u) * v| is hardly
    anything where u is negative, and grows with u where it is positive. Half of a bank is the other
    half negated: the top 4 of 8 have all that matters, and a dense layer adds next to nothing.
    """
    banks: dict[str, Any] = {"bank_size": BANK, "top_k": 4, "predictor_rank": HIDDEN}
    banks |= {"gate_mode": "silu"} | settings
    streams = Streams(num_streams, (False,) * LAYERS) if num_streams > 1 else None
    sparse = BankTopK(BANK, 4, banks["predictor_rank"], "silu")
    spec = DecoderSpec(BACKBONE, streams=streams, feed_forward=sparse)
    tensors = random_tensors(spec, np.float32)
    for layer in range(LAYERS):
        mlp = f"model.layers.{layer}.mlp"
        gate = tensors[f"{mlp}.gate_proj.weight"].reshape(-1, 2, BANK // 2, HIDDEN)
        gate[:, 0] *= 4
        gate[:, 1] = -gate[:, 0]
        tensors[f"{mlp}.up_proj.weight"] = tensors[f"{mlp}.gate_proj.weight"].copy()
        tensors[f"{mlp}.down_proj.weight"] /= 256
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"][:] = 1
        if banks["predictor_rank"] is not None:
            tensors[f"{mlp}.predictor.0.weight"] = np.eye(HIDDEN, dtype=np.float32)
            tensors[f"{mlp}.predictor.1.weight"] = tensors[f"{mlp}.gate_proj.weight"].copy()
    tensors["model.norm.weight"][:] = 1
    if change is not None:
        change(tensors)
    config: dict[str, Any] = {
        "intermediate_size": INNER,
        "max_position_embeddings": POSITIONS,
        "bank_topk": banks,
    }
    if streams is not None:
        config["scale_seq_times"] = num_streams - 1
    return write_checkpoint(folder, tensors, **config)


def scramble(*layers: int) -> Change:
    """Random predictors in these layers."""

    def change(tensors: Arrays) -> None:
        rng = np.random.default_rng(5)
        for layer in layers:
            name = f"model.layers.{layer}.mlp.predictor.1.weight"
            tensors[name] = rng.standard_normal(tensors[name].shape).astype(np.float32)

    return change


def export_banks(folder: Path, change: Change | None = None, **settings: Any) -> Path:
    checkpoint = write_banks(folder / "checkpoint", change, **settings)
    export_checkpoint(checkpoint, folder / "bundle", self_test=False)
    return folder / "bundle"


def write_text(bundle: Path, length: int) -> list[int]:
    """Token ids that a bundle is good at predicting: its own."""
    params = SamplingParams(seed=3, max_tokens=length - 1, ignore_eos=True)
    with LLM(bundle, backend="onnxruntime", threads=1) as llm:
        return [1, *llm.generate([[1]], params)[0].token_ids]
