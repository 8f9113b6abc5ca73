"""Runs a case through an opened bundle as the runtime would: prompts in calls, then step by step,
over its own caches. What comes out is kept token by token."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.comparison.cases import Case
from quatrain.exporter.comparison.drafts import roll_out_drafts
from quatrain.exporter.comparison.exit_outputs import add_mixture, run_head
from quatrain.exporter.comparison.kept_cache import read_cache
from quatrain.exporter.comparison.trace import Trace, split_tokens
from quatrain.runtime.decoding.history import TokenHistory
from quatrain.runtime.decoding.row_runner import RowCall, RowRunner
from quatrain.runtime.decoding.row_source import choose_token_source
from quatrain.runtime.decoding.segments import Segments
from quatrain.runtime.kv_cache import KVCache
from quatrain.runtime.manifest import Manifest
from quatrain.runtime.session import Model

__all__ = ["run_case"]


def run_case(model: Model, case: Case, tokens: NDArray[np.int64]) -> Trace:
    """What a bundle computes for a case out of the token table [S, T]: outputs, whatever its graphs
    were tapped for, drafted states, and every cache at the end."""
    run = _CaseRun(model.manifest, case, case.take(tokens))
    if model.manifest.exits is None:
        cache = run.run_decoder(model)
    else:
        cache = run.run_segments(model)
        add_mixture(run.trace, len(model.manifest.exits.segments))
    length = max(case.lengths)
    trace = _split_rows(run.trace, model.manifest)
    trace |= split_tokens(read_cache(model, cache, length), length)
    if model.manifest.drafter is not None:
        trace |= roll_out_drafts(model, run.tokens, trace["hidden"])
    return trace


class _CaseRun:
    """One case on its way; `trace` has the arrays [B, L, ...] as far as they are."""

    def __init__(self, manifest: Manifest, case: Case, tokens: NDArray[np.int64]) -> None:
        self.manifest = manifest
        self.case = case
        self.tokens = tokens
        self.trace: Trace = {}

    def run_decoder(self, model: Model) -> KVCache:
        """Run a decoder without exits."""
        batch_size = len(self.tokens)
        history = TokenHistory(self.manifest, batch_size)
        cache = model.allocate_cache(batch_size)
        name = next(graph.name for graph in self.manifest.graphs if graph.role == "decoder")
        runner = RowRunner(
            model.bind(cache)[name],
            cache,
            choose_token_source(model, history),
            self.case.chunk,
            history.documents,
        )
        for starts, ends in self._list_phases(history):
            for call in runner.run(starts, ends, every_row=True):
                self._keep(call, call.outputs)
        return cache

    def run_segments(self, model: Model) -> KVCache:
        """Run a decoder with exits: every segment, every exit's head."""
        history = TokenHistory(self.manifest, len(self.tokens))
        segments = Segments(model, history, self.case.chunk)
        for starts, ends in self._list_phases(history):
            for k, runner in enumerate(segments.runners):
                for call in runner.run(starts, ends, every_row=True):
                    if "updated_hidden" in call.outputs:
                        _carry_on(call, segments.hidden)
                    self._keep(call, self._name_exit(segments, k, call.outputs))
        return segments.cache

    def _list_phases(self, history: TokenHistory) -> Iterator[tuple[list[int], list[int]]]:
        """First and one past the last position of each sequence, phase by phase."""
        starts = [0] * len(self.tokens)
        lengths = self.case.lengths
        ends = list(self.case.prefill)
        while starts != ends:
            fed = [
                row[start:end].tolist()
                for row, start, end in zip(self.tokens, starts, ends, strict=True)
            ]
            history.append(starts, fed)
            yield starts, ends
            starts, ends = ends, [min(end + 1, n) for end, n in zip(ends, lengths, strict=True)]

    def _name_exit(
        self, segments: Segments, k: int, outputs: Mapping[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:
        """The outputs of segment k, and its head's, by the reference's names."""
        named = {name: array for name, array in outputs.items() if name.startswith("layers.")}
        named |= {name: array for name, array in outputs.items() if name == "embedding"}
        if "updated_hidden" in outputs:
            layers = self.manifest.exits.layers if self.manifest.exits else []
            named[f"layers.{layers[k] - 1}.output"] = outputs["updated_hidden"]
            named[f"exits.{k}.router_logprobs"] = outputs["router_logprobs"]
        if not self._has_adapter(k):  # the reference's states are those before one
            named[f"exits.{k}.state"] = outputs["exit_state"]
        return named | {f"exits.{k}.logits": run_head(segments, k, outputs["exit_state"])}

    def _has_adapter(self, k: int) -> bool:
        exits = self.manifest.spec["exits"]
        is_final = k == len(exits["layers"])
        return exits["final_adapter_size" if is_final else "adapter_size"] is not None

    def _keep(self, call: RowCall, outputs: Mapping[str, NDArray[Any]]) -> None:
        shape = self.tokens.shape
        for name, array in outputs.items():
            if name not in self.trace:
                self.trace[name] = np.zeros((*shape, *array.shape[2:]), array.dtype)
            for b, (start, count) in enumerate(zip(call.starts, call.counts, strict=True)):
                self.trace[name][b, start : start + count] = array[b, :count]


def _carry_on(call: RowCall, hidden: NDArray[np.float32]) -> None:
    """What the next segment starts from."""
    for b, (start, count) in enumerate(zip(call.starts, call.counts, strict=True)):
        hidden[b, start : start + count] = call.outputs["updated_hidden"][b, :count]


def _split_rows(trace: Trace, manifest: Manifest) -> Trace:
    """Tapped arrays have a token's rows side by side: [B, L, rows * d] to [B, L, rows, d]."""
    backbone = manifest.spec["backbone"]
    split: Trace = {}
    for name, array in trace.items():
        if name.startswith(("layers.", "embedding")):
            is_selection = name.endswith("active_channels")
            width = backbone["intermediate_size" if is_selection else "hidden_size"]
            array = array.reshape(*array.shape[:2], -1, width)
        split[name] = array
    return split
