"""Opens a bundle: one session per graph, on whichever backend fits the machine."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.errors import EngineError, RequestError
from quatrain.runtime.growing_cache import GrowingCache
from quatrain.runtime.host_embeddings import MappedEmbeddings
from quatrain.runtime.host_memory import allocate_host
from quatrain.runtime.kv_cache import KVCache, MemoryBlock, allocate_cache
from quatrain.runtime.manifest import Manifest, TensorInfo, load_manifest

if TYPE_CHECKING:
    from quatrain.runtime.tensorrt_session import FoundEngines

__all__ = [
    "Arrays",
    "Backend",
    "BoundGraph",
    "Model",
    "Session",
    "Sizes",
    "open_model",
    "resolve_shape",
    "run_graph",
]

logger = logging.getLogger(__name__)

# ONNX Runtime multiplies every row of a call with every key, and masks what lies ahead: half of a
# prompt's attention in one call. SmolLM2-135M, 512 tokens: 610 ms in one call, 560 in two, 622 in
# four, since products of few rows are slower; 2000 tokens likewise (benchmarks/results.md).
_CPU_PREFILL_CHUNK = 256

Arrays = dict[str, NDArray[np.generic]]
Backend = Literal["onnxruntime", "tensorrt"]


class Sizes(NamedTuple):
    """The symbolic dimensions of one call; see `TensorInfo`."""

    batch: int
    rows: int = 1
    length: int = 1
    outputs: int = 1


class BoundGraph(Protocol):
    """A graph tied to one cache, with input and output buffers of its own.

    The cycle is: `prepare` the sizes, fill the arrays it returns, `execute`. Buffers are reused:
    what `execute` returned is overwritten by the next `execute`, and arrays from either call are
    void after a `prepare` of other sizes. Whoever keeps a result copies it.
    """

    def prepare(self, sizes: Sizes) -> Arrays:
        """The input buffers at these sizes, caches excepted, to be filled by the caller."""
        ...

    def execute(self) -> Arrays:
        """Run the graph, updating the caches in place; its outputs, caches excepted."""
        ...


class Session(Protocol):
    """One graph, loaded."""

    @property
    def inputs(self) -> list[TensorInfo]:
        """Its inputs, caches included."""
        ...

    @property
    def busy_seconds(self) -> float:
        """Time spent inside the backend's run calls."""
        ...

    @property
    def num_calls(self) -> int:
        """How many of them there were."""
        ...

    def bind(self, cache: KVCache | None = None) -> BoundGraph:
        """Tie the graph to a cache (None: it has no caches)."""
        ...

    def close(self) -> None:
        """Give up what the backend holds; bound graphs are void afterwards."""
        ...


class Model:
    """An opened bundle: its manifest, and a session per graph by name.

    `backend` is what runs it, `reason` why that one was chosen. `embeddings` are the tables that
    stay on the host, None where the first graph holds them.
    """

    def __init__(
        self,
        bundle: Path,
        manifest: Manifest,
        sessions: dict[str, Session],
        backend: Backend,
        reason: str,
        allocate: Callable[[int], MemoryBlock] = allocate_host,
    ) -> None:
        self.bundle = bundle
        self.manifest = manifest
        self.sessions = sessions
        self.backend = backend
        self.reason = reason
        self.embeddings = _map_embeddings(bundle, manifest)
        self._allocate = allocate

    @property
    def busy_seconds(self) -> float:
        """Time spent inside the backend's run calls, all graphs together."""
        return sum(session.busy_seconds for session in self.sessions.values())

    @property
    def prefill_chunk(self) -> int:
        """Tokens of a prompt to run in one call: what was exported for, and on a CPU no more than
        is fast there."""
        exported = self.manifest.limits.prefill_chunk
        return exported if self.backend == "tensorrt" else min(exported, _CPU_PREFILL_CHUNK)

    def count_calls(self) -> dict[str, int]:
        """How often each graph was run so far, by name."""
        return {name: session.num_calls for name, session in self.sessions.items()}

    def allocate_cache(self, batch_size: int) -> KVCache:
        """A cache of zeros for `batch_size` sequences."""
        max_batch = self.manifest.limits.max_batch
        if not 1 <= batch_size <= max_batch:
            raise RequestError(
                f"a batch of {batch_size}",
                f"this bundle was exported for batches of 1 to {max_batch}",
                "split the batch, or export with a larger --max-batch",
            )
        graph, layout = self.manifest.graphs[0], self.manifest.cache
        if self.backend == "tensorrt":
            return allocate_cache(layout, batch_size, graph.deployment.dtype, self._allocate)
        if graph.reads_whole_caches:
            return GrowingCache(layout, batch_size)
        return allocate_cache(layout, batch_size, graph.dtype, self._allocate)

    def bind(self, cache: KVCache) -> dict[str, BoundGraph]:
        """Every graph, tied to this cache, by name."""
        return {name: session.bind(cache) for name, session in self.sessions.items()}

    def close(self) -> None:
        """Close all sessions; decoders of this model cannot be used any more."""
        for session in self.sessions.values():
            session.close()
        self.sessions.clear()
        if self.embeddings is not None:
            self.embeddings.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_model(
    bundle: Path,
    *,
    backend: Literal["auto"] | Backend = "auto",
    threads: int | None = None,
    exact: bool = False,
    session_cache: Path | None = None,
) -> Model:
    """Open every graph of a bundle.

    Args:
        backend: "auto" takes TensorRT where there are engines for this GPU and the installed
            TensorRT, and ONNX Runtime on the CPU everywhere else.
        threads: Threads of ONNX Runtime; None leaves it to ONNX Runtime (one per core).
        exact: On the CPU, multiply with quantized weights in float32, as slowly as with float32
            weights, instead of rounding what is multiplied with them to 8 bits.
        session_cache: A folder, made where there is none, for what ONNX Runtime makes of a graph
            when it opens it on this CPU: from then on it opens in about half the time. Takes as
            much room as the weights do in memory. What goes wrong with it is logged, never raised;
            `quatrain.runtime.session_cache` says what is checked.

    Raises:
        BundleError: the manifest or a graph is missing, altered or inconsistent.
        EngineError: TensorRT was asked for, and there is nothing it can run here.
        RequestError: an argument is out of range.
    """
    if threads is not None and threads < 1:
        raise RequestError(f"{threads} threads", "at least 1 is needed", "leave threads unset")
    if backend not in ("auto", "onnxruntime", "tensorrt"):
        raise RequestError(
            f"the backend {backend!r}",
            "there are auto, onnxruntime and tensorrt",
            "choose one of these, or leave it unset",
        )
    manifest = load_manifest(bundle)
    on_cpu = partial(_open_onnxruntime, bundle, manifest, threads, exact, session_cache)
    if backend == "onnxruntime":
        return on_cpu("asked for")
    from quatrain.runtime.tensorrt_session import find_engines

    try:
        found = find_engines(manifest)
    except EngineError as error:
        if backend == "tensorrt":
            raise
        return on_cpu(error.found)
    reason = "asked for" if backend == "tensorrt" else f"engines for SM {found.chosen.sm}"
    return _open_tensorrt(bundle, manifest, found, reason)


def run_graph(
    session: Session, feeds: Mapping[str, NDArray[np.generic]], cache: KVCache | None = None
) -> Arrays:
    """One call by name, for whoever calls a graph only now and then; the outputs are copies."""
    sizes: dict[str, int] = {"batch": 1}
    for info in session.inputs:
        if info.name in feeds:
            shape = feeds[info.name].shape
            sizes |= {s: n for s, n in zip(info.shape, shape, strict=True) if isinstance(s, str)}
    if cache is not None:
        cache.match(sizes.get("length", 1))
    graph = session.bind(cache)
    for name, buffer in graph.prepare(Sizes(**sizes)).items():
        buffer[...] = feeds[name]
    return {name: array.copy() for name, array in graph.execute().items()}


def resolve_shape(shape: list[int | str], sizes: Sizes) -> tuple[int, ...]:
    """A manifest shape with its symbolic dimensions filled in."""
    return tuple(size if isinstance(size, int) else getattr(sizes, size) for size in shape)


def _map_embeddings(bundle: Path, manifest: Manifest) -> MappedEmbeddings | None:
    if manifest.embeddings is None:
        return None
    return MappedEmbeddings(bundle, manifest.embeddings)


def _open_onnxruntime(
    bundle: Path,
    manifest: Manifest,
    threads: int | None,
    exact: bool,
    session_cache: Path | None,
    reason: str,
) -> Model:
    from quatrain.runtime.onnxruntime_session import open_session

    cache = None
    if session_cache is not None:
        from quatrain.runtime.session_cache import open_session_cache

        cache = open_session_cache(session_cache, bundle, manifest)
    sessions: dict[str, Session] = {}
    for graph in manifest.graphs:
        sessions[graph.name] = open_session(bundle, graph, threads, exact=exact, cache=cache)
    logger.info("%s runs on ONNX Runtime (CPU): %s", bundle, reason)
    return Model(bundle, manifest, sessions, "onnxruntime", reason)


def _open_tensorrt(bundle: Path, manifest: Manifest, found: "FoundEngines", reason: str) -> Model:
    from quatrain.runtime.cuda_device import DeviceMemory
    from quatrain.runtime.tensorrt_session import open_sessions

    sessions = open_sessions(bundle, manifest, found)
    logger.info("%s runs on TensorRT: %s", bundle, reason)
    allocate = partial(DeviceMemory, found.device)
    return Model(bundle, manifest, sessions, "tensorrt", reason, allocate)
