"""Text in and out: BOS, and pieces that never split a character and add up to the whole."""

import json
import random
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from quatrain.runtime.errors import BundleError, RequestError
from quatrain.runtime.tokenizer import Tokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps.",
    "Über die Brücke, über den Fluß; naïve café façade.",
    "日本語のテキストと、もう少しの日本語。",
    "emoji 👩‍👩‍👧 and 🦊🦊 and \ufffd itself\n\n\ttabs   spaces",
]
SPECIAL = ["<s>", "</s>", "<|im_start|>"]


def train_byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.add_tokens([AddedToken("日本", normalized=False), AddedToken("two words")])
    return tokenizer


def train_byte_fallback() -> tokenizers.Tokenizer:
    """As Llama 2's: metaspace, bytes for characters it lacks, a stripped first space."""
    metaspace = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = metaspace
    trainer = trainers.BpeTrainer(vocab_size=150, show_progress=False)
    trained.train_from_iterator(TEXTS[:2] * 3, trainer)
    model = json.loads(trained.to_str())["model"]
    names = [*SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            {name: place for place, name in enumerate(names)},
            [tuple(pair) for pair in model["merges"]],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    tokenizer.normalizer = metaspace
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def train_metaspace() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=[*SPECIAL, "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def train_word_piece() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=[*SPECIAL, "<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def train_byte_level_in_sequence() -> tokenizers.Tokenizer:
    tokenizer = train_byte_level()
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()])
    return tokenizer


def train_with_normalized_special_tokens() -> tokenizers.Tokenizer:
    """As some converted Llama tokenizers have them; `tokenizers` then names them `▁</s>`."""
    tokenizer = train_byte_fallback()
    tokenizer.add_special_tokens([AddedToken(token, normalized=True) for token in SPECIAL])
    return tokenizer


def train_without_decoder() -> tokenizers.Tokenizer:
    tokenizer = train_metaspace()
    tokenizer.decoder = None
    return tokenizer


KINDS = [
    train_byte_level,
    train_byte_fallback,
    train_metaspace,
    train_word_piece,
    train_byte_level_in_sequence,
    train_with_normalized_special_tokens,
    train_without_decoder,
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    return save(request.param(), tmp_path_factory.mktemp("tokenizer"))


def save(
    raw: tokenizers.Tokenizer, folder: Path, bos: int | None = 0, add: bool = True
) -> Tokenizer:
    raw.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder / "tokenizer.json", bos, add)


def decode_in_pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = tokenizer.start_decoding()
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


# --- pieces ---


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40) | st.text("ab éß日本🦊\ufffd\n▁.", max_size=40))
def test_pieces_add_up_on_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert "".join(decode_in_pieces(tokenizer, ids)) == tokenizer.decode(ids)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(0, 30), share=st.sampled_from([260, 10**6]))
def test_pieces_add_up_on_any_ids(tokenizer: Tokenizer, seed: int, size: int, share: int) -> None:
    """What a model may say, broken UTF-8 and ids without a token included."""
    ids = random.Random(seed).choices(range(min(share, 430)), k=size)
    assert "".join(decode_in_pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_pieces_never_split_a_character(tokenizer: Tokenizer) -> None:
    text = "x 🦊🦊 né 日本語 y"
    ids = tokenizer.encode(text)
    if tokenizer.decode(ids).strip() == text:  # all characters are in the vocabulary, as bytes
        assert not any("\ufffd" in piece for piece in decode_in_pieces(tokenizer, ids))


def test_characters_come_as_soon_as_they_are_whole(tmp_path: Path) -> None:
    tokenizer = save(train_byte_level(), tmp_path)
    ids = tokenizer.encode("🐙", is_start=False)
    assert len(ids) > 1
    assert decode_in_pieces(tokenizer, ids) == [*[""] * (len(ids) - 1), "🐙", ""]


def test_a_run_of_fallback_bytes_is_decided_where_it_ends(tmp_path: Path) -> None:
    """One invalid byte makes U+FFFD of each byte of its run, so nothing can be said before."""
    tokenizer = save(train_byte_fallback(), tmp_path)
    fox = [4 + byte for byte in "🦊".encode()]
    [letter] = tokenizer.encode("x", is_start=False)[-1:]
    assert decode_in_pieces(tokenizer, [*fox, letter]) == ["", "", "", "", "🦊x", ""]
    assert decode_in_pieces(tokenizer, [*fox, fox[0]]) == [*[""] * 5, "\ufffd" * 5]


def test_special_tokens_are_left_out(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("one", is_start=False), 1, *tokenizer.encode(" two", is_start=False)]
    assert "</s>" not in "".join(decode_in_pieces(tokenizer, ids))
    assert "</s>" not in tokenizer.decode(ids)


def test_a_token_takes_constant_time(tokenizer: Tokenizer) -> None:
    """The window that is decoded stays short."""
    detokenizer = tokenizer.start_decoding()
    seen: list[int] = []
    inner = tokenizer.decode
    tokenizer.decode = lambda ids: (seen.append(len(ids)), inner(ids))[1]  # type: ignore[method-assign]
    try:
        for token in tokenizer.encode("The quick brown fox. " * 200):
            detokenizer.push(token)
    finally:
        del tokenizer.decode  # type: ignore[method-assign]
    assert max(seen, default=0) <= 4


# --- BOS ---

TEMPLATE = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])


@pytest.mark.parametrize("template", [None, TEMPLATE])
@pytest.mark.parametrize("text", ["a fox", "<s>a fox", ""])
def test_bos_comes_once(tmp_path: Path, template: object, text: str) -> None:
    raw = train_byte_level()
    if template is not None:
        raw.post_processor = template
    ids = save(raw, tmp_path).encode(text)
    assert ids[0] == 0 and ids.count(0) == 1


def test_bos_is_not_added_unasked_nor_inside(tmp_path: Path) -> None:
    raw = train_byte_level()
    assert 0 not in save(raw, tmp_path, add=False).encode("a fox")
    assert 0 not in save(raw, tmp_path, bos=None).encode("a fox")
    raw.post_processor = TEMPLATE
    assert 0 not in save(raw, tmp_path).encode("a fox", is_start=False)


def test_truncation_and_padding_of_training_are_off(tmp_path: Path) -> None:
    raw = train_byte_level()
    raw.enable_truncation(4)
    raw.enable_padding(length=50)
    assert 10 < len(save(raw, tmp_path).encode("The quick brown fox jumps" * 2)) < 50


# --- bad input ---


def test_lone_surrogates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="not valid Unicode"):
        save(train_byte_level(), tmp_path).encode("ab\ud800")


@pytest.mark.parametrize("content", [None, "", "{}", "not json"])
def test_a_broken_file_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BundleError, match=r"tokenizer\.json"):
        Tokenizer(path, None, False)
