"""The optimization profiles of a graph, from its symbolic shapes and the bundle's limits."""

from collections.abc import Mapping

from quatrain.exporter.errors import BuildError
from quatrain.runtime.decoding.scoring import count_scored_rows
from quatrain.runtime.manifest import Graph, Manifest, Profile

__all__ = ["LEAST_BATCH", "plan_profiles"]

# The largest batch is this at least. Where a call can be one row and no other, TensorRT-RTX keeps a
# second copy of the weights, laid out for that: 105 MB instead of 70 MB for 8 layers of SmolLM2's
# width, and of int8 ones 62 MB instead of 45 MB (82 MB if only prefill has no batch of 2).
LEAST_BATCH = 2

# What a symbolic dimension can be: smallest, usual, largest.
Range = tuple[int, int, int]


def plan_profiles(graph: Graph, manifest: Manifest) -> list[Profile]:
    """A `prefill` profile for many rows a call and a `decode` profile for few; for a graph that
    knows of neither (a drafter), the latter alone.

    Raises `BuildError` for a dimension that is none of `batch`, `rows`, `length`, `outputs`.
    """
    limits, capacity = manifest.limits, manifest.cache.capacity
    chunk = min(limits.prefill_chunk, capacity)
    batch = (1, 1, max(LEAST_BATCH, limits.max_batch))
    prefill = {
        "batch": batch,
        "rows": (1, chunk, chunk),
        "length": (1, chunk, capacity),
        # A prompt needs the logits of one row; only scoring a text needs more.
        "outputs": (1, 1, min(chunk, count_scored_rows(manifest, batch_size=1))),
    }
    most_drafted = _count_drafted(graph, manifest)
    drafted = (1, 1 + most_drafted // 2, 1 + most_drafted)
    decode = {
        "batch": batch,
        "rows": drafted if most_drafted else (1, 1, _count_decode_rows(graph, manifest)),
        "length": (1, max(1, limits.max_seq_len // 2), capacity),
        # A verification wants the logits of every row.
        "outputs": drafted,
    }
    if graph.role == "drafter":
        return [Profile(name="decode", shapes=_make_shapes(graph, decode))]
    return [
        Profile(name="prefill", shapes=_make_shapes(graph, prefill)),
        Profile(name="decode", shapes=_make_shapes(graph, decode)),
    ]


def _count_drafted(graph: Graph, manifest: Manifest) -> int:
    """Drafted tokens that a decode call verifies beside the token before them."""
    if manifest.drafter is None or graph.role != "decoder":
        return 0
    return min(manifest.limits.max_draft, manifest.cache.capacity - 1)


def _count_decode_rows(graph: Graph, manifest: Manifest) -> int:
    """One, but behind an exit also the rows that were deferred there."""
    segments = manifest.exits.segments if manifest.exits else []
    if graph.name not in segments[1:]:
        return 1
    return min(manifest.limits.max_deferred + 1, manifest.cache.capacity)


def _make_shapes(graph: Graph, ranges: Mapping[str, Range]) -> dict[str, list[list[int]]]:
    shapes = {}
    for tensor in graph.deployment.inputs:
        dims = [(d, d, d) if isinstance(d, int) else ranges.get(d) for d in tensor.shape]
        if None in dims:
            raise BuildError(
                f"profiles for {graph.deployment.path}",
                f"input {tensor.name} has the shape {tensor.shape}",
                f"a graph has no dimensions but numbers and {', '.join(ranges)}; export it again",
            )
        shapes[tensor.name] = [[dim[point] for dim in dims if dim] for point in range(3)]
    return shapes
