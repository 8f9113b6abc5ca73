"""Text to token ids, and back again piece by piece while they are being generated."""

import codecs
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import tokenizers

from quatrain.runtime.errors import BundleError, RequestError
from quatrain.runtime.manifest import Manifest

__all__ = ["Detokenizer", "Tokenizer", "open_tokenizer"]

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Detokenizer(Protocol):
    """Turns the tokens of one sequence into text as they come.

    The pieces never split a character, and joined they are what decoding all tokens at once gives;
    a token takes constant time, however long the text.
    """

    def push(self, token_id: int) -> str:
        """The text that is certain with this token; it may be empty, or that of several tokens."""
        ...

    def finish(self) -> str:
        """The rest: U+FFFD for bytes that never became a character."""
        ...


class Tokenizer:
    """A `tokenizer.json`. Special tokens are parsed in prompts and left out of decoded text."""

    def __init__(self, path: Path, bos_token_id: int | None, add_bos_token: bool) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise BundleError(
                f"read the tokenizer {path}",
                str(error),
                "export the checkpoint again from an intact tokenizer.json",
            ) from error
        # What training left in the file must not cut or pad a prompt.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.bos_token_id = bos_token_id
        self._add_bos_token = add_bos_token
        self._steps = _list_decoder_steps(self._tokenizer)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self._bytes_of_token: dict[int, bytes] = {}

    def encode(self, text: str, *, is_start: bool = True) -> list[int]:
        """The token ids of `text`.

        Args:
            is_start: The text begins a sequence: special tokens are added as the tokenizer says,
                and the BOS token as the checkpoint says, but never twice.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                "a prompt as text",
                f"it is not valid Unicode: {error.reason} at character {error.start}",
                "decode the bytes it came from as UTF-8",
            ) from error
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=is_start).ids
        bos = self.bos_token_id
        if is_start and bos is not None:
            while ids[:2] == [bos, bos]:
                del ids[0]
            if self._add_bos_token and ids[:1] != [bos]:
                ids.insert(0, bos)
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, without special tokens.

        They are left out by id: the library itself goes by name, and so misses those that it
        renames by normalizing them (`</s>` to `▁</s>`).
        """
        heard = [token for token in token_ids if token not in self._special_ids]
        text: str = self._tokenizer.decode(heard, skip_special_tokens=True)
        return text

    def start_decoding(self) -> Detokenizer:
        """A fresh detokenizer, for one sequence."""
        if self._steps == ("ByteLevel",):
            return _ByteDetokenizer(self)
        return _WindowDetokenizer(
            self,
            has_byte_tokens="ByteFallback" in self._steps,
            can_split_characters="ByteLevel" in self._steps,
        )

    def is_silent(self, token_id: int) -> bool:
        """Whether decoding leaves the token out: a special one, or an id without a token."""
        return token_id in self._special_ids or self._tokenizer.id_to_token(token_id) is None

    def is_byte(self, token_id: int) -> bool:
        """Whether the token is one byte of a character the vocabulary lacks, such as <0xE4>."""
        return bool(_BYTE_TOKEN.fullmatch(self._tokenizer.id_to_token(token_id) or ""))

    def read_bytes(self, token_id: int) -> bytes:
        """What a token of a byte-level vocabulary stands for; nothing for a silent one."""
        known = self._bytes_of_token.get(token_id)
        if known is None:
            token = "" if self.is_silent(token_id) else self._tokenizer.id_to_token(token_id)
            known = self._bytes_of_token[token_id] = _parse_byte_level(token or "")
        return known


def open_tokenizer(bundle: Path, manifest: Manifest) -> Tokenizer | None:
    """The tokenizer of a bundle; None where its checkpoint had none."""
    info = manifest.tokenizer
    if info is None:
        return None
    return Tokenizer(bundle / info.path, info.bos_token_id, info.add_bos_token)


class _ByteDetokenizer:
    """For byte-level vocabularies, where tokens are runs of bytes: decodes UTF-8 incrementally."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._read_bytes = tokenizer.read_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._read_bytes(token_id))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowDetokenizer:
    """For all others: a token's text is what it adds to that of the few tokens before it.

    Those few are needed because the first token of a decoded sequence is special: SentencePiece
    drops its leading space. With byte fallback a run of byte tokens is only certain when it ends,
    since one invalid byte makes U+FFFD of every byte of its run.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, has_byte_tokens: bool, can_split_characters: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._has_byte_tokens = has_byte_tokens
        self._can_split_characters = can_split_characters
        self._window: list[int] = []
        self._num_given = 0
        self._given_text = ""  # decoded from the first `_num_given` tokens of the window

    def push(self, token_id: int) -> str:
        if self._tokenizer.is_silent(token_id):
            return ""
        self._window.append(token_id)
        if self._has_byte_tokens and self._tokenizer.is_byte(token_id):
            return ""
        text = self._tokenizer.decode(self._window)
        if self._can_split_characters and text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        return self._give(text)

    def finish(self) -> str:
        return self._give(self._tokenizer.decode(self._window))

    def _give(self, text: str) -> str:
        piece = text[len(self._given_text) :]
        self._window = self._window[self._num_given :]
        self._num_given = len(self._window)
        self._given_text = self._tokenizer.decode(self._window)
        return piece


def _list_decoder_steps(tokenizer: tokenizers.Tokenizer) -> tuple[str, ...]:
    """The types of the tokenizer's decoder, in order (pickling shows them as JSON)."""
    if tokenizer.decoder is None:
        return ()
    config: dict[str, Any] = msgspec.json.decode(tokenizer.decoder.__getstate__())
    return tuple(step["type"] for step in config.get("decoders", [config]))


def _map_byte_level_characters() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies (GPT-2's).

    Printable Latin-1 bytes stand for themselves, the others for U+0100 onwards in order:
    https://huggingface.co/docs/tokenizers/api/pre-tokenizers (ByteLevel).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    mapping = {chr(byte): byte for byte in printable}
    mapping |= {chr(0x100 + place): byte for place, byte in enumerate(others)}
    return mapping


_BYTE_OF_CHARACTER = _map_byte_level_characters()


def _parse_byte_level(token: str) -> bytes:
    """The bytes of a token; an added token with any other character is its own UTF-8."""
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode()
