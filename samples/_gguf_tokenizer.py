"""Rebuild a Hugging Face tokenizer from the vocabulary stored in a GGUF file."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

_PRE_TOKENIZERS = ("smollm",)


class TokenType(IntEnum):
    """The llama.cpp token kinds that are matched verbatim, outside of the BPE merges."""

    CONTROL = 3
    USER_DEFINED = 4


def build_tokenizer(metadata: Mapping[str, Any]) -> Any:
    """Return a ``tokenizers.Tokenizer``: byte-level BPE that splits every digit off."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    _check_kind(metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [_split_merge(merge) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add_verbatim_tokens(tokenizer, metadata)
    return tokenizer


def special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the content of ``special_tokens_map.json``."""
    names = {
        "bos_token": "bos",
        "eos_token": "eos",
        "unk_token": "unknown",
        "pad_token": "padding",
    }
    tokens = metadata["tokenizer.ggml.tokens"]
    keys = {name: f"tokenizer.ggml.{part}_token_id" for name, part in names.items()}
    return {name: tokens[int(metadata[key])] for name, key in keys.items() if key in metadata}


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of ``tokenizer_config.json``, the chat template included."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(metadata["llama.context_length"]),
        "add_prefix_space": False,
        "add_bos_token": bool(metadata.get("tokenizer.ggml.add_bos_token", False)),
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": _added_tokens(metadata),
        **special_tokens(metadata),
    }
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return config


def _check_kind(metadata: Mapping[str, Any]) -> None:
    model, pre = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre")
    if model != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise ValueError(f"cannot rebuild a tokenizer of model {model!r}, pre-tokenizer {pre!r}")
    if metadata.get("tokenizer.ggml.add_bos_token", False):
        raise ValueError("a tokenizer that adds a begin token is not supported")


def _split_merge(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise ValueError(f"malformed BPE merge {merge!r}")
    return left, right


def _verbatim(metadata: Mapping[str, Any]) -> list[tuple[int, str, bool]]:
    """List (id, text, special) of the tokens that BPE must not split."""
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"]
    return [
        (index, token, kind == TokenType.CONTROL)
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]


def _add_verbatim_tokens(tokenizer: Any, metadata: Mapping[str, Any]) -> None:
    from tokenizers import AddedToken

    tokenizer.add_tokens(
        [
            AddedToken(text, special=special, normalized=False)
            for _, text, special in _verbatim(metadata)
        ]
    )


def _added_tokens(metadata: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {
        str(index): {"content": text, "special": special, **flags}
        for index, text, special in _verbatim(metadata)
    }
