"""What tests of `LLM` have in common: a text and its tokenizer, and one generation."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from quatrain.runtime import LLM, GenerationResult, SamplingParams

TEXT = "The quick brown fox jumps over the lazy dog; über naïve 日本 🦊. "
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def save_tokenizer(folder: Path) -> None:
    """Byte-level, `<s>` 1 and `</s>` 2 as in the golden config, under its 512 ids."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([TEXT], trainer)
    raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True}))


def run(llm: LLM, prompt: Any, **params: Any) -> GenerationResult:
    [result] = llm.generate([prompt], SamplingParams(**params))
    return result
