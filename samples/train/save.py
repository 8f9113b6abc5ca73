"""Writes a checkpoint folder in the layout Hugging Face tools read."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from tokenizers import Tokenizer
from torch import nn

from samples.train.llama import LlamaSettings
from samples.train.tokenizer import BOS, BOS_ID, EOS, EOS_ID


def round_weights(model: nn.Module) -> None:
    """Replace every weight by its bfloat16 neighbour, kept in float32: the values saved."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())


def describe_llama(settings: LlamaSettings, architecture: str) -> Mapping[str, object]:
    """The fields of a plain LlamaConfig."""
    fields = {
        "architectures": [architecture],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": BOS_ID,
        "dtype": "bfloat16",
        "eos_token_id": EOS_ID,
        "hidden_act": "silu",
        "mlp_bias": False,
        "model_type": "llama",
        "pretraining_tp": 1,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "use_cache": False,
    }
    return fields | settings.as_dict()


def describe_tokenizer(max_length: int) -> Mapping[str, object]:
    """tokenizer_config.json; tokenizer.json itself puts BOS in front."""
    special = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    names = {BOS_ID: BOS, EOS_ID: EOS}
    return {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": {
            str(i): {"content": name, **special, "special": True} for i, name in names.items()
        },
        "bos_token": BOS,
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS,
        "model_max_length": max_length,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Indented, with a newline at the end."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def save_tokenizer(folder: Path, tokenizer: Tokenizer, max_length: int) -> None:
    """The tokenizer and how tools are to load it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", describe_tokenizer(max_length))
    write_json(folder / "special_tokens_map.json", {"bos_token": BOS, "eos_token": EOS})


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    settings: LlamaSettings,
    tokenizer: Tokenizer,
    config: Mapping[str, object],
) -> None:
    """Weights in bfloat16, config (keys sorted), generation config and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.bfloat16().contiguous() for name, t in model.state_dict().items()}
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    write_json(folder / "config.json", dict(sorted(config.items())))
    ends = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
    write_json(folder / "generation_config.json", ends)
    save_tokenizer(folder, tokenizer, settings.max_position_embeddings)
