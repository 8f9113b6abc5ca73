"""A bundle's float32 graphs with more of what they compute among their outputs: what enters each
feed-forward network, and the head.

For calibration and diagnosis: the bundle itself is left as it is; its weights are linked into a
folder that is gone afterwards.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.bundle import write_file
from quatrain.exporter.bundle_copy import borrow_bundle
from quatrain.exporter.errors import ExportError
from quatrain.exporter.probe_graph import FFN_INPUT, HEAD_INPUT, Edit, probe_graph
from quatrain.runtime.decoding.history import TokenHistory
from quatrain.runtime.decoding.row_runner import RowCall, RowRunner
from quatrain.runtime.decoding.row_source import choose_token_source
from quatrain.runtime.decoding.scoring import count_scored_rows
from quatrain.runtime.decoding.segments import Segments
from quatrain.runtime.manifest import (
    MANIFEST_NAME,
    Graph,
    dump_manifest,
    load_manifest,
)
from quatrain.runtime.session import Model, open_model

__all__ = ["FFN_INPUT", "HEAD_INPUT", "ProbedRows", "probe_bundle", "run_probe"]


class ProbedRows(NamedTuple):
    """What entered the feed-forward networks at the token positions `start .. start +
    num_tokens - 1`.

    `inputs` has float32 [B, rows, d] by layer: n rows for each token, stream after stream, where a
    layer runs all n streams of it, else one (that of the last stream). `outputs` are all outputs of
    the graph that ran, by name. Both are its own buffers, void once the next call runs.
    """

    start: int
    num_tokens: int
    inputs: dict[int, NDArray[np.float32]]
    outputs: dict[str, NDArray[np.generic]]


@contextmanager
def probe_bundle(
    bundle: Path,
    layers: Collection[int] | None = None,
    *,
    edit: Edit | None = None,
    logits: bool = True,
    states: bool = False,
    threads: int | None = None,
) -> Iterator[Model]:
    """Open a bundle on the CPU, with an output `ffn_input.{l}` for each layer asked for.

    It is float32 [B, R, n * d], a token's rows side by side, where the layer runs all of a token's
    n streams; [B, R, d] where it runs the last one of every token; and [B, E, d] where it runs only
    the rows whose result is wanted, as the last layer does (ask for every row). `run_probe` does
    that, and gives rows of d.

    Args:
        layers: Default: all.
        edit: Changes each graph with layers, after the outputs were added.
        logits: False leaves out a decoder's head, and its output with it, to save the time.
        states: Add an output `head_input` to a decoder: the state after the final norm, float32
            [B, E, d], of the rows whose result is wanted.
        threads: Of ONNX Runtime.

    Raises:
        BundleError: It is no bundle, or damaged.
        ExportError: A graph has no such layer; or states are asked of a model with exits.
    """
    bundle = Path(bundle)
    manifest = load_manifest(bundle)
    with borrow_bundle(bundle, manifest) as folder:
        graphs = [
            graph
            if graph.role not in ("decoder", "segment")
            else probe_graph(folder, manifest, graph, layers, edit, logits, states)
            for graph in manifest.graphs
        ]
        _check_layers(bundle, graphs, layers)
        changed = msgspec.structs.replace(manifest, graphs=graphs, engines=[])
        write_file(folder / MANIFEST_NAME, dump_manifest(changed))
        with open_model(folder, backend="onnxruntime", threads=threads) as model:
            yield model


def run_probe(model: Model, token_ids: NDArray[np.int64]) -> Iterator[ProbedRows]:
    """Run sequences int64 [B, L] through a probed model, chunk by chunk, over a cache of its own.

    With exits every chunk is given once for each segment, with that segment's layers.
    """
    manifest = model.manifest
    batch_size, length = token_ids.shape
    history = TokenHistory(manifest, batch_size)
    history.append([0] * batch_size, token_ids.tolist())
    hidden_size = manifest.spec["backbone"]["hidden_size"]
    if manifest.exits is None:
        for call in _run_decoder(model, history, length):
            yield _read_call(call, hidden_size)
        return
    chunk = manifest.limits.prefill_chunk
    segments = Segments(model, history, chunk)
    for start in range(0, length, chunk):
        stop = min(start + chunk, length)
        for runner in segments.runners:
            (call,) = runner.run([start] * batch_size, [stop] * batch_size, every_row=True)
            if "updated_hidden" in call.outputs:
                segments.hidden[:, start:stop] = call.outputs["updated_hidden"]
            yield _read_call(call, hidden_size)


def _run_decoder(model: Model, history: TokenHistory, length: int) -> Iterator[RowCall]:
    manifest = model.manifest
    batch_size = len(history.tokens)
    graph = next(graph for graph in manifest.graphs if graph.role == "decoder")
    has_logits = any(info.name == "logits" for info in graph.outputs)
    chunk = manifest.limits.prefill_chunk
    if has_logits:
        chunk = count_scored_rows(manifest, batch_size)
    cache = model.allocate_cache(batch_size)
    bound = model.bind(cache)[graph.name]
    runner = RowRunner(bound, cache, choose_token_source(model, history), chunk)
    yield from runner.run([0] * batch_size, [length] * batch_size, every_row=True)


def _read_call(call: RowCall, hidden_size: int) -> ProbedRows:
    inputs = {
        int(name.removeprefix(FFN_INPUT)): array.reshape(len(array), -1, hidden_size).view(
            np.float32
        )
        for name, array in call.outputs.items()
        if name.startswith(FFN_INPUT)
    }
    return ProbedRows(call.starts[0], call.counts[0], inputs, call.outputs)


def _check_layers(bundle: Path, graphs: list[Graph], layers: Collection[int] | None) -> None:
    names = {info.name for graph in graphs for info in graph.outputs}
    missing = sorted(layer for layer in layers or () if f"{FFN_INPUT}{layer}" not in names)
    if missing:
        raise ExportError(
            f"what enters the feed-forward networks of layers {', '.join(map(str, missing))}",
            f"{bundle} has no such layers",
            "count layers from 0",
        )
