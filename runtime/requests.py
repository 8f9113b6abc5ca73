"""Prompts and parameters as a user gives them, checked against the bundle that shall serve them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quatrain.runtime.errors import RequestError
from quatrain.runtime.length_limit import advise_on_length
from quatrain.runtime.manifest import Manifest
from quatrain.runtime.sampling import SamplingParams
from quatrain.runtime.tokenizer import Tokenizer

__all__ = [
    "Prompt",
    "Request",
    "RequestReader",
    "read_id_array",
    "split_params",
    "split_prompts",
]

Prompt = str | Sequence[int] | NDArray[np.integer]
"""Text, or token ids (a list or an integer array [L]), which are taken as they are: no BOS."""


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to extend.

    Args:
        past_ids: Tokens of earlier turns.
        prompt_ids: Tokens of this one.
        max_tokens: Most that may follow, by the parameters and by the length limit.
    """

    past_ids: list[int]
    prompt_ids: list[int]
    params: SamplingParams
    max_tokens: int

    @property
    def context_ids(self) -> list[int]:
        """Everything the first new token follows."""
        return self.past_ids + self.prompt_ids


class RequestReader:
    """Reads the requests for one bundle."""

    def __init__(self, manifest: Manifest, tokenizer: Tokenizer | None) -> None:
        self._manifest = manifest
        self._tokenizer = tokenizer

    def read(self, prompt: Prompt, params: SamplingParams, past_ids: Sequence[int] = ()) -> Request:
        """Tokenize and check; raises `RequestError` for whatever cannot be served."""
        self._check_params(params)
        prompt_ids = self.encode(prompt, is_start=not past_ids)
        if not prompt_ids and not past_ids:
            raise RequestError(
                "a generation from an empty prompt",
                "no token to begin with (the checkpoint names no BOS token, or the prompt is an "
                "empty list of ids)",
                "give at least one token",
            )
        room = self._measure_room(len(past_ids), len(prompt_ids), params.max_tokens)
        return Request(list(past_ids), prompt_ids, params, min(params.max_tokens, room))

    def encode(self, prompt: Prompt, *, is_start: bool = True) -> list[int]:
        """The token ids of a prompt; an empty text that begins a sequence is the BOS token."""
        if not isinstance(prompt, str):
            return read_token_ids(prompt, self._manifest.vocab_size)
        if self._tokenizer is None:
            raise RequestError(
                "a prompt as text",
                "this bundle has no tokenizer (its checkpoint had none)",
                "give the prompt as token ids, or add tokenizer.json to the checkpoint and export "
                "it again",
            )
        ids = self._tokenizer.encode(prompt, is_start=is_start)
        bos = self._tokenizer.bos_token_id
        if not ids and is_start and bos is not None:
            ids = [bos]
        return read_token_ids(ids, self._manifest.vocab_size)

    def _check_params(self, params: SamplingParams) -> None:
        if not isinstance(params, SamplingParams):
            raise RequestError(
                f"params of type {type(params).__name__}",
                "that is not SamplingParams",
                "give SamplingParams(...), or a list of them, one per prompt",
            )
        if params.stop and self._tokenizer is None:
            raise RequestError(
                f"stop={list(params.stop)!r}",
                "this bundle has no tokenizer, so there is no text to find a stop string in",
                "use stop_token_ids",
            )
        outside = [i for i in params.stop_token_ids if i >= self._manifest.vocab_size]
        if outside:
            raise RequestError(
                f"stop_token_ids with {outside}",
                f"the vocabulary has {self._manifest.vocab_size} tokens",
                f"give ids below {self._manifest.vocab_size}",
            )
        self._check_routing(params)

    def _check_routing(self, params: SamplingParams) -> None:
        exits = self._manifest.exits
        if params.routing is None:
            return
        if exits is None:
            raise RequestError(
                f"routing={params.routing!r}",
                f"this model ({self._manifest.family}) has no exits to route to",
                "leave routing out",
            )
        if isinstance(params.routing, int) and params.routing >= len(exits.layers):
            raise RequestError(
                f"routing={params.routing} (a forced exit)",
                f"the model has exits 0 to {len(exits.layers) - 1}, after layers {exits.layers}",
                f"force an exit from 0 to {len(exits.layers) - 1}, or none",
            )

    def _measure_room(self, num_past: int, num_prompt: int, max_tokens: int) -> int:
        """Tokens that may still follow the prompt."""
        limit = self._manifest.limits.max_seq_len
        room = limit - num_past - num_prompt
        least = min(max_tokens, 1)
        if room < least:
            earlier = f" after {num_past} of earlier turns" if num_past else ""
            shorter = "shorten the prompt" + (", or begin another conversation" if num_past else "")
            raise RequestError(
                f"a prompt of {num_prompt} tokens{earlier}",
                f"this bundle holds sequences of {limit} tokens, prompt and output together",
                advise_on_length(shorter, num_past + num_prompt + least, self._manifest),
            )
        return room


def read_token_ids(ids: object, vocab_size: int) -> list[int]:
    """Token ids as a list of int; anything else among them raises `RequestError`."""
    if isinstance(ids, np.ndarray):
        ids = ids.tolist() if ids.ndim == 1 else [ids]
    if not isinstance(ids, Sequence) or isinstance(ids, (str, bytes)):
        raise RequestError(
            f"a prompt of type {type(ids).__name__}",
            "a prompt is text or a list of token ids",
            "give a str or a list of int",
        )
    for place, token in enumerate(ids):
        is_integer = isinstance(token, (int, np.integer)) and not isinstance(token, bool)
        if not is_integer or not 0 <= token < vocab_size:
            raise RequestError(
                f"token id {token!r} at position {place} of a prompt",
                f"this model's token ids are integers from 0 to {vocab_size - 1}",
                "give ids of this model's own tokenizer",
            )
    return [int(token) for token in ids]


def read_id_array(token_ids: ArrayLike, manifest: Manifest) -> NDArray[np.int64]:
    """Token ids [L] or [B, L] as int64 [B, L]; `RequestError` unless the model can score them."""
    asked = "the logits of token ids"
    try:
        ids = np.asarray(token_ids)
    except (ValueError, OverflowError) as error:
        raise RequestError(asked, f"no array: {error}", "give rows of equal length") from error
    if ids.dtype.kind not in "iu" or ids.ndim not in (1, 2) or not ids.size:
        raise RequestError(
            asked,
            f"an array of shape {list(ids.shape)} and type {ids.dtype}",
            "give integers, [length] or [batch, length], at least one",
        )
    if ids.min() < 0 or ids.max() >= manifest.vocab_size:
        raise RequestError(
            asked,
            f"ids from {ids.min()} to {ids.max()}",
            f"this model's token ids are integers from 0 to {manifest.vocab_size - 1}",
        )
    limit = manifest.limits.max_seq_len
    if ids.shape[-1] > limit:
        raise RequestError(
            f"the logits of {ids.shape[-1]} tokens",
            f"this bundle holds sequences of {limit} tokens",
            advise_on_length("cut them", ids.shape[-1], manifest),
        )
    return np.atleast_2d(ids).astype(np.int64)


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several as a list; an empty list is no prompt at all."""
    if isinstance(prompts, np.ndarray):
        return list(prompts) if prompts.ndim == 2 else [prompts]
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        return [cast(Prompt, prompts)]
    is_several = all(isinstance(item, (str, Sequence, np.ndarray)) for item in prompts)
    return list(cast(Sequence[Prompt], prompts)) if is_several else [cast(Sequence[int], prompts)]


def split_params(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """One set of parameters per prompt; None is the defaults."""
    if params is None:
        params = SamplingParams()
    if not isinstance(params, Sequence):
        return [params] * num_prompts
    if len(params) != num_prompts:
        raise RequestError(
            f"{len(params)} params for {num_prompts} prompts",
            "a list of params goes with a list of prompts, one each",
            "give one SamplingParams for all, or as many as there are prompts",
        )
    return list(params)
