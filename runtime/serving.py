"""An open model with all that requests need: shared by `LLM` and its conversations."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from quatrain.runtime.decoding import make_decoder
from quatrain.runtime.decoding.decoder import Decoder
from quatrain.runtime.decoding.draft_policy import DraftPolicy, FixedDraft, make_draft_policy
from quatrain.runtime.decoding.draft_record import DraftRecord
from quatrain.runtime.decoding.draft_switch import DraftSwitch
from quatrain.runtime.decoding.routing import ArgmaxRouting, ForcedRouting, Routing, SampleRouting
from quatrain.runtime.decoding.speculative import SpeculativeDecoder
from quatrain.runtime.errors import RequestError
from quatrain.runtime.generation import Meter, Row, generate_steps
from quatrain.runtime.requests import Request, RequestReader
from quatrain.runtime.results import GenerationResult, GenerationStats, StreamDelta
from quatrain.runtime.sampling import SamplingParams
from quatrain.runtime.session import Model
from quatrain.runtime.speculation import generate_drafted
from quatrain.runtime.tokenizer import Tokenizer

__all__ = ["ServedModel", "stream_row"]


class ServedModel:
    """A model, its tokenizer and its limits; `is_closed` after `close`.

    `draft` is what `settle_draft` makes of a setting.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | None,
        max_deferred: int | None,
        draft: Literal["auto"] | int | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._max_deferred = max_deferred
        self._draft = draft
        self._draft_switches: dict[int, DraftSwitch] = {}  # by batch size
        self.is_closed = False
        self.manifest = model.manifest
        self.tokenizer = tokenizer
        self.reader = RequestReader(model.manifest, tokenizer)

    @property
    def model(self) -> Model:
        """The open model; raises `RequestError` after `close`."""
        self.check_open()
        return self._model

    def check_open(self) -> None:
        """Raise `RequestError` after `close`."""
        if self.is_closed:
            raise RequestError(
                "a generation", "this LLM is closed", "open the bundle again: LLM(bundle)"
            )

    def close(self) -> None:
        """Give back the sessions' memory; harmless when done before."""
        if not self.is_closed:
            self.is_closed = True
            self._model.close()

    def start_row(self, request: Request) -> tuple[Row, Routing]:
        """A sequence to generate and its way through the exits; both draw from one generator."""
        rng = np.random.default_rng(request.params.seed)
        row = Row(request, rng, self._tokenizer, self.manifest.eos_token_ids)
        return row, _make_routing(request.params, rng)

    def make_decoder(self, routing: Sequence[Routing]) -> Decoder:
        """A decoder with an empty cache, for as many sequences as there are routings."""
        return make_decoder(self.model, len(routing), routing, self._max_deferred)

    def run(self, rows: Sequence[tuple[Row, Routing]], meter: Meter) -> Iterator[None]:
        """Generate a batch from nothing; yields after each token."""
        meter.start()
        decoder = self.make_decoder([routing for _, routing in rows])
        meter.stop()
        yield from self.run_steps(decoder, [row for row, _ in rows], meter)

    def run_steps(self, decoder: Decoder, rows: Sequence[Row], meter: Meter) -> Iterator[None]:
        """Generate; yields after each token, and refuses to go on after `close`."""
        policy = self.make_draft_policy(rows, meter)
        if policy is None:
            steps = generate_steps(decoder, rows, meter)
        else:
            assert isinstance(decoder, SpeculativeDecoder)
            max_seq_len = self.manifest.limits.max_seq_len
            steps = generate_drafted(decoder, rows, meter, policy, max_seq_len)
        for _ in steps:
            yield
            self.check_open()

    def make_meter(self) -> Meter:
        """A meter of this model's time, and of its drafting where it drafts."""
        model = self.model
        record = None if self._draft is None else DraftRecord()
        return Meter(lambda: model.busy_seconds, record)

    def make_draft_policy(
        self, rows: Sequence[Row], meter: Meter
    ) -> DraftPolicy | FixedDraft | None:
        """How to draft for a batch of rows, counted with `meter`; None: not at all.

        What `auto` learns is kept for later batches of that size. It drafts nothing where drawn
        tokens are to be repeatable: how many it drafts, and with it what is drawn, depends on the
        clock.
        """
        draft, size = self._draft, len(rows)
        if draft is None:
            return None
        max_draft = self.manifest.limits.max_draft
        if draft == "auto" and any(row.is_repeatable for row in rows):
            draft = 0
        switch = self._draft_switches.setdefault(size, DraftSwitch(max_draft))
        return make_draft_policy(draft, max_draft, switch, meter.draft)

    def make_result(self, row: Row) -> GenerationResult:
        """What a finished row gives back."""
        assert row.finish_reason is not None
        counts, depth = self._count_exits(row.exits)
        return GenerationResult(
            text="".join(row.pieces),
            token_ids=row.token_ids,
            finish_reason=row.finish_reason,
            prompt_tokens=len(row.request.prompt_ids),
            output_tokens=len(row.token_ids),
            exits=None if counts is None else row.exits,
            exit_counts=counts,
            mean_depth=depth,
        )

    def make_stats(self, rows: Sequence[Row], meter: Meter) -> GenerationStats:
        """The numbers of one call, finished or not."""
        lengths = [len(row.token_ids) for row in rows]
        num_after_first = sum(length - 1 for length in lengths if length)
        python_seconds = max(meter.seconds - meter.busy_seconds, 0.0)
        counts, depth = self._count_exits([index for row in rows for index in row.exits])
        return GenerationStats(
            prompt_tokens=sum(len(row.request.prompt_ids) for row in rows),
            output_tokens=sum(lengths),
            seconds=meter.seconds,
            time_to_first_token=meter.time_to_first_token,
            tokens_per_second=_divide(sum(lengths), meter.seconds),
            decode_tokens_per_second=_divide(
                num_after_first, meter.seconds - meter.prefill_seconds
            ),
            python_seconds=python_seconds,
            python_share=_divide(python_seconds, meter.seconds),
            exit_counts=counts,
            mean_depth=depth,
            draft=None if meter.draft is None else meter.draft.statistics,
        )

    def _count_exits(self, exits: Sequence[int]) -> tuple[list[int] | None, float | None]:
        """Tokens per exit, and mean depth in decoder layers; None where there are none."""
        layout = self.manifest.exits
        if layout is None:
            return None, None
        counts = [exits.count(index) for index in range(len(layout.layers))]
        layers = sum(count * depth for count, depth in zip(counts, layout.layers, strict=True))
        return counts, layers / len(exits) if exits else None


def stream_row(row: Row, steps: Iterator[None]) -> Iterator[StreamDelta]:
    """A delta per step; the one that finishes the row carries the counts."""
    if row.finish_reason is not None:  # max_tokens=0
        yield _make_delta(row, [], [])
        return
    for _ in steps:
        yield _make_delta(row, row.token_ids[-1:], row.exits[-1:])


def _make_delta(row: Row, token_ids: list[int], exits: list[int]) -> StreamDelta:
    is_last = row.finish_reason is not None
    return StreamDelta(
        text=row.delta,
        token_ids=token_ids,
        exits=exits or None,
        finish_reason=row.finish_reason,
        prompt_tokens=len(row.request.prompt_ids) if is_last else None,
        output_tokens=len(row.token_ids) if is_last else None,
    )


def _make_routing(params: SamplingParams, rng: np.random.Generator) -> Routing:
    match params.chosen_routing:
        case "sample":
            return SampleRouting(rng)
        case "argmax":
            return ArgmaxRouting()
        case index:
            return ForcedRouting(index)


def _divide(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
