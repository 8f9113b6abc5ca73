"""A bundle, opened to generate text: the one class most users need."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quatrain.runtime.bundle_check import verify_bundle
from quatrain.runtime.conversation import Conversation
from quatrain.runtime.decoding.scoring import score_tokens
from quatrain.runtime.draft_setting import DraftSetting, settle_draft
from quatrain.runtime.errors import RequestError
from quatrain.runtime.generation import Meter, Row
from quatrain.runtime.manifest import Manifest, load_manifest
from quatrain.runtime.requests import Prompt, Request, read_id_array, split_params, split_prompts
from quatrain.runtime.results import GenerationResult, GenerationStats, StreamDelta
from quatrain.runtime.sampling import SamplingParams
from quatrain.runtime.self_test import check_self_test
from quatrain.runtime.serving import ServedModel, stream_row
from quatrain.runtime.session import open_model
from quatrain.runtime.tokenizer import Tokenizer, open_tokenizer

__all__ = ["LLM"]

# ONNX Runtime would set out to make any number, for minutes and gigabytes, deaf to Ctrl-C.
_MAX_THREADS = 1024


class LLM:
    """An open bundle. Use it as a context manager, or call `close`.

    Not for several threads at once. Several streams and conversations may be open together; each
    has a cache of its own.

    Args:
        bundle: The folder that `quatrain export` wrote.
        backend: "onnxruntime" on the CPU, "tensorrt" on a GPU the bundle has engines for; "auto"
            takes the engines where they fit this machine.
        threads: CPU threads of ONNX Runtime; None leaves it the choice.
        max_deferred: With exits, the most tokens an exit may leave for later (memory and latency,
            not results, depend on it). None: what the bundle was exported for.
        draft: With a drafter, how many tokens to guess before each verification: `auto` chooses as
            acceptance and speed turn out, and guesses none where that loses time or tokens are
            drawn with a seed; a number is that many always, 0 or None none. Greedy tokens do not
            depend on it, nor does the distribution of drawn ones.
        exact: On a CPU, multiply with quantized weights in float32, at a fraction of the speed,
            instead of rounding what is multiplied with them to 8 bits. Nothing else depends on it.
        session_cache: On a CPU, a folder to keep sessions in, as ONNX Runtime optimized them: the
            bundle then opens in about half the time. Made where there is none; takes as much room
            as the weights do in memory, and may be removed at any time.
        self_test: Generate the manifest's self-test first; `BundleError` if other tokens come out.
        verify: Compare the files with the manifest first: sizes, hashes of those up to 64 MiB, and
            of linked weights time and header.

    Raises:
        BundleError: The folder is no bundle, or not as it was written.
        EngineError: No engine fits, and `backend` asks for one.
        RequestError: An argument that this bundle or machine has no room for, or an empty path of
            `session_cache`.
    """

    def __init__(
        self,
        bundle: str | Path,
        *,
        backend: Literal["auto", "onnxruntime", "tensorrt"] = "auto",
        threads: int | None = None,
        max_deferred: int | None = None,
        draft: DraftSetting = "auto",
        exact: bool = False,
        session_cache: str | Path | None = None,
        self_test: bool = False,
        verify: bool = True,
    ) -> None:
        folder = Path(bundle)
        manifest = load_manifest(folder)
        if verify:
            verify_bundle(folder, manifest)
        _check_threads(threads)
        cache = _read_session_cache(session_cache)
        bound = _settle_max_deferred(max_deferred, manifest)
        drafting = settle_draft(draft, manifest)
        tokenizer = open_tokenizer(folder, manifest)
        model = open_model(
            folder,
            backend=backend,
            threads=threads,
            exact=exact,
            session_cache=cache,
        )
        self._served = ServedModel(model, tokenizer, bound, drafting)
        self._stats = self._served.make_stats([], self._served.make_meter())
        if self_test:
            self._run_self_test()

    @property
    def manifest(self) -> Manifest:
        """What the bundle says of itself."""
        return self._served.manifest

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The bundle's tokenizer, if it has one."""
        return self._served.tokenizer

    @property
    def stats(self) -> GenerationStats:
        """Numbers of the last `generate` or `stream` (a conversation keeps its own)."""
        return self._stats

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[GenerationResult]:
        """Generate from one prompt or several; the results are in the order of the prompts.

        Each gives what it would give alone. They run in batches of at most `limits.max_batch`.

        Args:
            prompts: Text, or a list of token ids; or a list of either.
            params: For all prompts, or one for each; None is `SamplingParams()`.
        """
        asked = split_prompts(prompts)
        requests = [
            self._served.reader.read(prompt, one)
            for prompt, one in zip(asked, split_params(params, len(asked)), strict=True)
        ]
        rows, meter = self._run_batches(requests)
        self._stats = self._served.make_stats(rows, meter)
        return [self._served.make_result(row) for row in rows]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamDelta]:
        """Generate from one prompt, token by token; a bad request is refused before the first."""
        self._served.check_open()
        [one] = split_params(params, 1)
        return self._stream_request(self._served.reader.read(prompt, one))

    def conversation(self) -> Conversation:
        """A new conversation: several turns over one cache."""
        return Conversation(self._served)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids that `generate` would feed for a prompt."""
        return self._served.reader.encode(prompt)

    def logits(self, token_ids: ArrayLike) -> NDArray[np.float32]:
        """What the model says at every position: logits, or log-probabilities with exits.

        Args:
            token_ids: [L] or [B, L].

        Returns:
            float32 [B, L, V]; [L] counts as B = 1. With exits these are the log-probabilities of
            the mixture over all of them.
        """
        ids = read_id_array(token_ids, self.manifest)
        size = self.manifest.limits.max_batch
        model = self._served.model
        scores = [score_tokens(model, ids[at : at + size]) for at in range(0, len(ids), size)]
        return scores[0] if len(scores) == 1 else np.concatenate(scores)

    def close(self) -> None:
        """Give back the memory. Closing twice is harmless; anything else after it is refused."""
        self._served.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_batches(self, requests: Sequence[Request]) -> tuple[list[Row], Meter]:
        served = self._served
        meter = served.make_meter()
        started = [served.start_row(request) for request in requests]
        waiting = [pair for pair in started if pair[0].finish_reason is None]
        size = self.manifest.limits.max_batch
        for at in range(0, len(waiting), size):
            for _ in served.run(waiting[at : at + size], meter):
                pass
        return [row for row, _ in started], meter

    def _stream_request(self, request: Request) -> Iterator[StreamDelta]:
        row, routing = self._served.start_row(request)
        meter = self._served.make_meter()
        try:
            yield from stream_row(row, self._served.run([(row, routing)], meter))
        finally:
            self._stats = self._served.make_stats([row], meter)

    def _run_self_test(self) -> None:
        """Close again if it fails: a constructor that raises leaves nothing open."""
        try:
            check_self_test(self.manifest, self.generate)
        except BaseException:
            self.close()
            raise


def _check_threads(threads: int | None) -> None:
    if threads is not None and (type(threads) is not int or not 1 <= threads <= _MAX_THREADS):
        raise RequestError(
            f"threads={threads!r}",
            "that is no number of threads",
            f"give an integer from 1 to {_MAX_THREADS}",
        )


def _read_session_cache(folder: str | Path | None) -> Path | None:
    if folder == "":  # as of a shell variable that is not set; a `Path` of it would be "."
        raise RequestError(
            "a session cache at an empty path",
            "a path with no name in it would be the current folder",
            "name the folder (the current one is '.'), or leave session_cache out",
        )
    return None if folder is None else Path(folder)


def _settle_max_deferred(max_deferred: int | None, manifest: Manifest) -> int | None:
    limit = manifest.limits.max_deferred
    if max_deferred is None:
        return limit
    if manifest.exits is None:
        raise RequestError(
            f"max_deferred={max_deferred!r}",
            f"this model ({manifest.family}) has no exits, so nothing is deferred",
            "leave max_deferred out",
        )
    if type(max_deferred) is not int or not 1 <= max_deferred <= limit:
        has_more = limit < manifest.limits.max_seq_len
        more = ", or export with a larger --max-deferred" if has_more else ""
        raise RequestError(
            f"max_deferred={max_deferred!r}",
            f"this bundle was exported for 1 to {limit}",
            f"give an integer from 1 to {limit}{more}",
        )
    return max_deferred
