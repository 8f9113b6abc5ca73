"""Writes the settings file that N-vium checkpoints carry beside config.json."""

import json
from collections.abc import Mapping

import yaml

from samples.train.llama import LlamaSettings
from samples.train.loop import LoopSettings
from samples.train.nvium import NviumSettings

Tree = Mapping[str, object]


def format_yaml(tree: Tree) -> str:
    """Block YAML, keys in the order given and nothing shared by reference."""
    return yaml.safe_dump(json.loads(json.dumps(tree)), sort_keys=False)


def describe_losses(nvium: NviumSettings) -> Tree:
    """Which loss terms are on before and after warm-up, and their weights."""
    weights = {
        "mix_loss": 1.0,
        "router_warmup_loss": nvium.pull_weight,
        "router_compute_loss": nvium.compute_weight,
    }
    return {
        "use_warmup": True,
        "warmup_ratio": nvium.warmup_ratio,
        "warmup_steps": 0,
        "warmup": {"mix_loss": True, "router_warmup_loss": True, "router_compute_loss": False},
        "main": {"mix_loss": True, "router_warmup_loss": False, "router_compute_loss": True},
        "alphas_warmup": weights,
        "alphas_main": weights,
    }


def describe_nvium(llama: LlamaSettings, nvium: NviumSettings, loop: LoopSettings) -> Tree:
    """The public keys, with the values this recipe used."""
    width = llama.hidden_size
    return {
        "model_name_or_path": "llama",
        "model_type": "multihead",
        "seed": loop.seed,
        "dataset": "pydoc_data.topics",
        "early_layer_idx": nvium.early_layer_idx,
        "decode_head": "mix",
        "temperature": 1.0,
        "random_init_all": True,
        "init_checkpoint": None,
        "resume_from_checkpoint": None,
        "tying": {
            "tie_final_to_embeddings": False,
            "tie_early_to_final": True,
            "tie_early_to_embeddings": False,
            "init_early_from": "random",
        },
        "router": {
            "router_type": "simple_mlp",
            "router_temp": 1.0,
            "hidden_size": width,
            "intermediate_size": nvium.router_intermediate_size,
            "num_layers": 1,
            "router_head_init_std": nvium.router_head_init_std,
        },
        "early_adapter": {"enabled": True, "dim": width},
        "final_adapter": {"enabled": True, "dim": width},
        "loss": describe_losses(nvium),
        "load_args": {"bf16": True, "fp16": False, "fp32": False, "attn_implementation": "sdpa"},
        "model_overrides": {
            "hidden_size": width,
            "num_hidden_layers": llama.num_hidden_layers,
            "num_attention_heads": llama.num_attention_heads,
            "num_key_value_heads": llama.num_key_value_heads,
            "intermediate_size": llama.intermediate_size,
            "head_dim": llama.head_dim,
            "max_position_embeddings": llama.max_position_embeddings,
        },
        "training_args": {
            "learning_rate": loop.learning_rate,
            "min_lr": loop.min_learning_rate,
            "max_steps": loop.steps,
            "optim": "adamw_torch",
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "lr_scheduler_type": "cosine_with_min_lr",
            "warmup_ratio": loop.warmup_ratio,
            "max_grad_norm": loop.max_grad_norm,
            "weight_decay": loop.weight_decay,
        },
        "inference": {"sample_router": False, "router_sample_temp": 1.0},
    }
