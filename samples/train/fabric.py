"""Writes and reads checkpoints in NextLat's own layout: a Lightning Fabric .pt, and YAML."""

from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from samples.train.hydra import format_yaml
from samples.train.llama import LlamaSettings
from samples.train.nextlat import NextLatSettings
from samples.train.save import save_tokenizer
from samples.train.tokenizer import EOS_ID

WEIGHTS = "checkpoint.pt"
SETTINGS = "materialized_config.yaml"
TOP_NAMES = {
    "token_embedding.weight": "model.embed_tokens.weight",
    "transformer.norm.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "ln_1": ("input_layernorm",),
    "ln_2": ("post_attention_layernorm",),
    "attn.c_attn": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attn.c_proj": ("self_attn.o_proj",),
    "mlp.up.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
}
"""A stored matrix, and the ones it stacks."""


def list_names(num_layers: int) -> dict[str, tuple[str, ...]]:
    """Stored backbone names, and ours in the order in which they are stacked."""
    names: dict[str, tuple[str, ...]] = {stored: (ours,) for stored, ours in TOP_NAMES.items()}
    for layer in range(num_layers):
        for stored, parts in LAYER_NAMES.items():
            own = tuple(f"model.layers.{layer}.{part}.weight" for part in parts)
            names[f"transformer.blocks.{layer}.{stored}.weight"] = own
    return names


def fuse_weights(weights: Mapping[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Ours to theirs; the names of the dynamics are the same in both."""
    names = list_names(num_layers)
    fused = {stored: torch.cat([weights[n] for n in own]) for stored, own in names.items()}
    return fused | {n: w for n, w in weights.items() if n.startswith("dynamics_model.")}


def split_weights(stored: Mapping[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Theirs to ours."""
    weights = {n: w for n, w in stored.items() if n.startswith("dynamics_model.")}
    for name, own in list_names(num_layers).items():
        weights |= zip(own, stored[name].chunk(len(own)), strict=True)
    return weights


def describe_nextlat(settings: LlamaSettings, nextlat: NextLatSettings) -> Mapping[str, object]:
    """materialized_config.yaml, in the public keys."""
    return {
        "block_size": settings.max_position_embeddings,
        "vocab_size": settings.vocab_size,
        "n_layer": settings.num_hidden_layers,
        "n_head": settings.num_attention_heads,
        "n_embd": settings.hidden_size,
        "dropout": 0.0,
        "bias": False,
        "context_length": settings.max_position_embeddings,
        "eos_token_id": EOS_ID,
        "lambda_kl": nextlat.lambda_kl,
        "lambda_mse": nextlat.lambda_mse,
        "lambda_ce": nextlat.lambda_ce,
        "mtp_horizon": nextlat.mtp_horizon,
        "proj_factor": nextlat.proj_factor,
    }


def save_fabric(
    folder: Path,
    model: nn.Module,
    settings: LlamaSettings,
    nextlat: NextLatSettings,
    tokenizer: Tokenizer,
    steps: int,
) -> None:
    """Weights in bfloat16 without the optimizer's state, settings and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = fuse_weights(model.state_dict(), settings.num_hidden_layers)
    checkpoint = {
        "model": {name: w.bfloat16().contiguous() for name, w in weights.items()},
        "optimizer": {},
        "training_steps": steps,
        "lr_scheduler_state": {},
    }
    torch.save(checkpoint, folder / WEIGHTS)
    text = format_yaml(describe_nextlat(settings, nextlat))
    (folder / SETTINGS).write_text(text, encoding="utf-8")
    save_tokenizer(folder, tokenizer, settings.max_position_embeddings)


def load_fabric(model: nn.Module, folder: Path, num_layers: int) -> None:
    """Fill the model, in float32; no pickled code is run."""
    checkpoint = torch.load(folder / WEIGHTS, weights_only=True)
    weights = split_weights(checkpoint["model"], num_layers)
    model.load_state_dict({name: w.float() for name, w in weights.items()})
