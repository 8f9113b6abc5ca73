"""Several turns over one cache."""

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.decoding.decoder import Decoder
from quatrain.runtime.decoding.routing import Routing
from quatrain.runtime.errors import RequestError
from quatrain.runtime.generation import Meter, Row
from quatrain.runtime.requests import Prompt, Request, split_params
from quatrain.runtime.results import GenerationResult, GenerationStats, StreamDelta
from quatrain.runtime.sampling import SamplingParams
from quatrain.runtime.serving import ServedModel, stream_row

__all__ = ["Conversation"]


class Conversation:
    """A sequence that grows turn by turn; get one from `LLM.conversation()`.

    Each turn sees everything before it, and only what is new is computed. A text prompt gets the
    BOS token in the first turn only; nothing else is put between the turns. A turn that fails or is
    interrupted leaves the conversation as it was before it; a stream that the caller stops reading
    keeps what was generated until then.
    """

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self._routing = _TurnRouting()
        self._decoder: Decoder | None = None  # None: to be made, and fed from the beginning
        self._token_ids: list[int] = []
        self._is_running = False
        self._stats = served.make_stats([], served.make_meter())

    @property
    def token_ids(self) -> list[int]:
        """All tokens so far, prompts and outputs."""
        return list(self._token_ids)

    @property
    def stats(self) -> GenerationStats:
        """Numbers of the last turn."""
        return self._stats

    def send(self, prompt: Prompt, params: SamplingParams | None = None) -> GenerationResult:
        """One turn: append `prompt`, generate, keep both. `params` may differ each turn."""
        row, routing = self._served.start_row(self._read(prompt, params))
        for _ in self._run_turn(row, routing):
            pass
        return self._served.make_result(row)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[StreamDelta]:
        """The same turn in pieces, as `LLM.stream` gives them."""
        self._read(prompt, params)  # a bad request is refused here, not at the first piece
        return self._stream_turn(prompt, params)

    def _stream_turn(self, prompt: Prompt, params: SamplingParams | None) -> Iterator[StreamDelta]:
        row, routing = self._served.start_row(self._read(prompt, params))
        yield from stream_row(row, self._run_turn(row, routing))

    def _read(self, prompt: Prompt, params: SamplingParams | None) -> Request:
        self._served.check_open()
        if self._is_running:
            raise RequestError(
                "another turn of a conversation",
                "the turn before it is still being streamed",
                "read that stream to its end, or close it",
            )
        [one] = split_params(params, 1)
        return self._served.reader.read(prompt, one, self._token_ids)

    def _run_turn(self, row: Row, routing: Routing) -> Iterator[None]:
        meter = self._served.make_meter()
        self._is_running, self._routing.current = True, routing
        try:
            if row.finish_reason is None:
                yield from self._run_steps(row, meter)
            else:
                self._keep(row)
        finally:
            self._is_running = False
            self._stats = self._served.make_stats([row], meter)

    def _run_steps(self, row: Row, meter: Meter) -> Iterator[None]:
        """Generate, and keep the decoder if it came through: after an error it is made anew."""
        meter.start()
        decoder = self._decoder or self._served.make_decoder([self._routing])
        self._decoder = None
        meter.stop()
        with suppress(GeneratorExit):  # the caller reads no further: between two steps, all whole
            for _ in self._served.run_steps(decoder, [row], meter):
                yield
        if self._served.is_closed:
            return
        meter.start()
        decoder.flush()
        meter.stop()
        self._decoder = decoder
        self._keep(row)

    def _keep(self, row: Row) -> None:
        self._token_ids = row.request.context_ids + row.token_ids


class _TurnRouting:
    """The routing of the turn that is running; the decoder outlives it."""

    current: Routing

    def decide(self, exit_index: int, router_logprobs: NDArray[np.float32]) -> bool:
        return self.current.decide(exit_index, router_logprobs)
