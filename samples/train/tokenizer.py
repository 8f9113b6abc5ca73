"""A small byte-level BPE tokenizer: lossless, so text in is text out."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS = "<|begin|>"
EOS = "<|endoftext|>"
BOS_ID = 0
EOS_ID = 1


def train_tokenizer(documents: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn merges from the documents.

    Encoding puts BOS in front (it begins every training window too, wherever the window starts);
    EOS is never added by encoding: the model has to say it.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)]
    )
    return tokenizer


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of the text alone, without BOS."""
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def encode_documents(tokenizer: Tokenizer, documents: Iterable[str]) -> list[int]:
    """One stream of ids, each document followed by EOS."""
    return [i for text in documents for i in [*encode_text(tokenizer, text), EOS_ID]]
