"""Does a manifest agree with itself? `bundle_check` holds it to the files."""

from collections.abc import Iterable
from pathlib import PurePosixPath

from quatrain.runtime.drafter_check import find_bad_drafter
from quatrain.runtime.manifest_records import (
    CacheLayer,
    CacheLayout,
    HostEmbeddings,
    Manifest,
    TensorInfo,
)

__all__ = ["find_inconsistency"]


def find_inconsistency(manifest: Manifest) -> str | None:
    """The first thing in a manifest that cannot be, or None."""
    return (
        _find_bad_path(manifest)
        or _find_bad_graph(manifest)
        or _find_bad_number(manifest)
        or _find_bad_cache(manifest.cache)
        or _find_other_cache(manifest)
        or _find_bad_embeddings(manifest)
        or find_bad_drafter(manifest)
        or _find_bad_verification(manifest)
    )


def _find_bad_path(manifest: Manifest) -> str | None:
    known = {record.path for record in manifest.files}
    for path in _all_paths(manifest):
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts or "\\" in path or not path:
            return f"a path that leaves the bundle: {path!r}"
        if path not in known:
            return f"no size and hash recorded for {path!r}"
    return "a file recorded twice" if len(known) != len(manifest.files) else None


def _find_bad_graph(manifest: Manifest) -> str | None:
    names = [graph.name for graph in manifest.graphs]
    if len(set(names)) != len(names):
        return "two graphs of one name"
    wanted = {layer.graph for layer in manifest.cache.layers}
    wanted |= {engine.graph for engine in manifest.engines}
    if manifest.exits:
        wanted |= {*manifest.exits.segments, *manifest.exits.heads}
    if manifest.drafter:
        wanted.add(manifest.drafter.graph)
    missing = sorted(wanted - set(names))
    return f"graphs that are referred to but not there: {', '.join(missing)}" if missing else None


def _find_bad_number(manifest: Manifest) -> str | None:
    limits = manifest.limits
    sizes = (limits.max_seq_len, limits.max_batch, limits.prefill_chunk, limits.max_deferred)
    if min(*sizes, limits.max_draft) < 1:
        return "a limit below 1"
    # A row that is finished or waiting still writes one row of padding behind its live length.
    if manifest.cache.capacity <= limits.max_seq_len:
        return (
            f"cache capacity {manifest.cache.capacity} not above max_seq_len {limits.max_seq_len}"
        )
    if not all(0 <= token < manifest.vocab_size for token in manifest.eos_token_ids):
        return f"an EOS id outside the vocabulary of {manifest.vocab_size}"
    document = manifest.document_token_id
    if document is not None and not 0 <= document < manifest.vocab_size:
        return f"a document token outside the vocabulary of {manifest.vocab_size}: {document}"
    return None


def _find_bad_verification(manifest: Manifest) -> str | None:
    found = manifest.verification
    if found is None:
        return None
    if found.status == "skipped" and not found.reason:
        return "a verification that was skipped without a reason"
    if found.status == "passed" and (found.checks < 1 or not found.runners):
        return "a verification that passed without a check"
    return None


def _find_bad_cache(layout: CacheLayout) -> str | None:
    if layout.rows_per_token < 1:
        return f"tokens of {layout.rows_per_token} rows"
    for layer in layout.layers:
        if layer.window is not None and layer.window < 1:
            return f"a window of {layer.window} positions in the cache of layer {layer.layer}"
    return None


def _find_other_cache(manifest: Manifest) -> str | None:
    """A cache that is not what a graph takes for its layer."""
    for layer in manifest.cache.layers:
        graph = manifest.graph(layer.graph)
        names = (f"key_cache.{layer.layer}", f"value_cache.{layer.layer}")
        caches = [i for i in (*graph.inputs, *graph.deployment.inputs) if i.name in names]
        for info in caches:
            wanted = _describe_cache(manifest.cache, layer, info)
            if info.shape != wanted:
                return f"{info.name} of {graph.name} should be {wanted} and is {info.shape}"
    return None


def _describe_cache(layout: CacheLayout, layer: CacheLayer, info: TensorInfo) -> list[int | str]:
    """The shape of the cache: its positions are a number, or named where they grow."""
    positions: int | str = layout.positions(layer)
    if any(isinstance(size, str) for size in info.shape[2:3]):
        positions = "row_length" if layer.unit == "rows" else "length"
    return ["batch", layer.num_heads, positions, layer.head_dim]


def _find_bad_embeddings(manifest: Manifest) -> str | None:
    """Tables of the wrong number, shape or place, or a graph that does not take their rows."""
    embeddings = manifest.embeddings
    if embeddings is not None:
        problem = _find_bad_tables(manifest, embeddings)
        if problem:
            return problem
    wanted = None if embeddings is None else _describe_input(embeddings)
    # Only the first graph embeds tokens; the others go on from its hidden rows.
    for graph in manifest.graphs[:1]:
        for path, inputs in (
            (graph.path, graph.inputs),
            (graph.deployment.path, graph.deployment.inputs),
        ):
            found = next((info for info in inputs if info.name == "inputs_embeds"), None)
            if found != wanted:
                return f"inputs_embeds of {path} should be {_show(wanted)} and is {_show(found)}"
    return None


def _find_bad_tables(manifest: Manifest, embeddings: HostEmbeddings) -> str | None:
    tables, num_rows = embeddings.tables, manifest.cache.rows_per_token
    if len(tables) != num_rows:
        return f"{len(tables)} embedding tables for tokens of {num_rows} rows"
    hidden_size = tables[0].shape[-1] if tables[0].shape else 0
    sizes = {record.path: record.bytes for record in manifest.files}
    for table in tables:
        if table.shape != [manifest.vocab_size, hidden_size] or hidden_size < 1:
            return (
                f"an embedding table of shape {table.shape} in {table.path}, for a vocabulary of "
                f"{manifest.vocab_size} and {hidden_size} columns"
            )
        if table.offset < 0 or table.offset + table.num_bytes > sizes[table.path]:
            return (
                f"an embedding table of {table.num_bytes} bytes from byte {table.offset} on "
                f"in {table.path}, which has {sizes[table.path]}"
            )
    return None


def _describe_input(embeddings: HostEmbeddings) -> TensorInfo:
    width = sum(table.shape[1] for table in embeddings.tables)
    return TensorInfo(name="inputs_embeds", dtype="float32", shape=["batch", "rows", width])


def _show(info: TensorInfo | None) -> str:
    return "absent" if info is None else f"{info.dtype} {info.shape}"


def _all_paths(manifest: Manifest) -> Iterable[str]:
    yield from (record.path for record in manifest.files)
    for graph in manifest.graphs:
        yield from (graph.path, graph.deployment.path)
    yield from (engine.path for engine in manifest.engines)
    if manifest.embeddings:
        yield from (table.path for table in manifest.embeddings.tables)
    if manifest.tokenizer:
        yield manifest.tokenizer.path
        if manifest.tokenizer.chat_template:
            yield manifest.tokenizer.chat_template
