"""What a diagnosis runs on: a bank-top-k bundle and a text, checked and cut into windows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.diagnosis.windows import Window, cut_windows, number_buckets, start_buckets
from quatrain.exporter.errors import ExportError
from quatrain.exporter.spec import BankTopK
from quatrain.runtime.bundle_check import verify_bundle
from quatrain.runtime.errors import RequestError
from quatrain.runtime.manifest import Manifest, load_manifest
from quatrain.runtime.requests import Prompt, RequestReader
from quatrain.runtime.tokenizer import open_tokenizer

__all__ = ["MIN_TOKENS", "Setting", "open_setting"]

MIN_TOKENS = 32  # fewer say nothing of how channels are used


@dataclass(frozen=True, slots=True)
class Setting:
    """`bucket_starts` has the first position of each bucket; `bucket_of` int64 [tokens] the bucket
    of every position of all windows, one window after the other."""

    bundle: Path
    manifest: Manifest
    banks: BankTopK
    windows: list[Window]
    bucket_starts: list[int]
    bucket_of: NDArray[np.int64]

    @property
    def num_tokens(self) -> int:
        """Tokens predicted."""
        return len(self.bucket_of)

    @property
    def last_position(self) -> int:
        """That of the longest window."""
        return max(len(window.tokens) for window in self.windows) - 1


def open_setting(
    bundle: Path, text: Prompt, max_tokens: int, *, check_weights: bool = False
) -> Setting:
    """Check the bundle (`check_weights`: its largest files' recorded hashes, too) and the text.

    Raises:
        BundleError: It is no bundle (a checkpoint, say), or not as it was written.
        ExportError: It has no banks.
        RequestError: The text is too short, or nothing can tokenize it.
    """
    asked = f"the activations of {bundle}"
    manifest = load_manifest(bundle)
    banks = _read_banks(asked, manifest)
    verify_bundle(bundle, manifest, full=check_weights)
    ids, bos_token_id = _encode(asked, bundle, manifest, text, max_tokens)
    windows = cut_windows(ids, manifest.limits.max_seq_len, bos_token_id)
    starts = start_buckets(max(len(window.tokens) for window in windows))
    positions = np.concatenate([np.arange(len(window.tokens)) for window in windows])
    return Setting(bundle, manifest, banks, windows, starts, number_buckets(starts, positions))


def _read_banks(asked: str, manifest: Manifest) -> BankTopK:
    found: dict[str, Any] | None = manifest.spec.get("feed_forward")
    if found is None:
        raise ExportError(
            asked,
            f"a {manifest.family} bundle: without banks all channels of every layer run",
            "give the bundle of a bank-top-k checkpoint (bank_topk in its config.json)",
        )
    return BankTopK(**{**found, "dense_fallback_layers": tuple(found["dense_fallback_layers"])})


def _encode(
    asked: str, bundle: Path, manifest: Manifest, text: Prompt, max_tokens: int
) -> tuple[list[int], int | None]:
    """At most `max_tokens` token ids and one before them, and the id of BOS."""
    if type(max_tokens) is not int or max_tokens < MIN_TOKENS:
        raise RequestError(
            f"{asked} over {max_tokens!r} tokens",
            f"at least {MIN_TOKENS} are needed",
            "give a larger --tokens",
        )
    tokenizer = open_tokenizer(bundle, manifest)
    if tokenizer is None and isinstance(text, str):
        raise RequestError(
            f"{asked} over a text",
            "this bundle has no tokenizer (its checkpoint had none)",
            "give token ids, one array of integers in a .npy file, or add tokenizer.json to the"
            " checkpoint and export it again",
        )
    ids = RequestReader(manifest, tokenizer).encode(text)
    if len(ids) <= MIN_TOKENS:
        raise RequestError(
            f"{asked} over a text of {len(ids)} tokens",
            f"at least {MIN_TOKENS + 1} are needed, and thousands to say much",
            "give a longer text",
        )
    return ids[: max_tokens + 1], None if tokenizer is None else tokenizer.bos_token_id
