"""ONNX Runtime on the CPU: buffers bound once by address, caches updated in place."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as ort
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession, IOBinding

from quatrain.runtime.errors import BundleError
from quatrain.runtime.huge_pages import huge_pages
from quatrain.runtime.kv_cache import CacheTensor, KVCache
from quatrain.runtime.manifest import Graph, TensorInfo
from quatrain.runtime.session import Arrays, BoundGraph, Sizes, resolve_shape
from quatrain.runtime.session_cache import SessionCache

__all__ = ["CUDA_PROVIDERS", "OnnxRuntimeSession", "list_providers", "open_session"]

logger = logging.getLogger(__name__)

_Bind = Callable[[str, str, int, type[np.generic], tuple[int, ...], int], None]

Provider = str | tuple[str, dict[str, str]]
CPU_PROVIDERS: tuple[Provider, ...] = ("CPUExecutionProvider",)
CUDA_PROVIDERS: tuple[Provider, ...] = (
    ("CUDAExecutionProvider", {"use_tf32": "0"}),  # float32 is what was asked for
    "CPUExecutionProvider",
)

MAX_CALLS = 32
WEIGHTS_NAME = "model.data"
SPIN_MICROSECONDS = "100"
DTYPES = {"tensor(int64)": "int64", "tensor(bool)": "bool", "tensor(float)": "float32"}
LOAD_ERRORS = (
    ort.Fail,
    ort.InvalidArgument,
    ort.InvalidGraph,
    ort.InvalidProtobuf,
    ort.NoSuchFile,
    ort.NotImplemented,
    ort.RuntimeException,
)


class OnnxRuntimeSession:
    """One fp32 graph in ONNX Runtime."""

    def __init__(self, session: InferenceSession, graph: Graph) -> None:
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self.busy_seconds = 0.0
        self.num_calls = 0
        self._backend: InferenceSession | None = session

    @property
    def backend(self) -> InferenceSession:
        """ONNX Runtime's session; a `RuntimeError` once this one is closed."""
        if self._backend is None:
            raise RuntimeError("this model is closed")
        return self._backend

    def bind(self, cache: KVCache | None = None) -> BoundGraph:
        """Tie the graph to a cache (None: it has no caches)."""
        return _BoundGraph(self, cache)

    def close(self) -> None:
        """Free the weights, as soon as no bound graph holds them any more."""
        self._backend = None


class _Buffer:
    """An input or output in host memory that only grows, bound by its address."""

    def __init__(self, info: TensorInfo, bind: _Bind) -> None:
        self._info = info
        self._bind = bind
        self._flat: NDArray[np.generic] = np.zeros(0, info.dtype)
        self._address = 0
        self.array = self._flat

    def resize(self, sizes: Sizes) -> None:
        """Give `array` its shape at these sizes, and bind it again if that changed."""
        shape = resolve_shape(self._info.shape, sizes)
        if shape == self.array.shape:
            return
        count = math.prod(shape)
        if count > self._flat.size:
            self._flat = np.zeros(count, self._flat.dtype)
            self._address = self._flat.ctypes.data
        self.array = self._flat[:count].reshape(shape)
        self._bind(self._info.name, "cpu", 0, self._flat.dtype.type, shape, self._address)


class _Call:
    """The binding of calls that agree in all sizes but the live length, and their buffers."""

    def __init__(self, session: OnnxRuntimeSession, caches: Mapping[str, CacheTensor]) -> None:
        self.binding = session.backend.io_binding()
        self.sizes: Sizes | None = None
        self._inputs = _bind_tensors(session.inputs, caches, self.binding.bind_input)
        # The same memory bound as input and as output: TensorScatter then writes it in place.
        updated = {f"updated_{name}": tensor for name, tensor in caches.items()}
        self._outputs = _bind_tensors(session.outputs, updated, self.binding.bind_output)
        self.inputs: Arrays = {}
        self.outputs: Arrays = {}

    def resize(self, sizes: Sizes) -> None:
        """Give every buffer its shape at these sizes."""
        for buffers, arrays in ((self._inputs, self.inputs), (self._outputs, self.outputs)):
            for name, buffer in buffers.items():
                buffer.resize(sizes)
                arrays[name] = buffer.array
        self.sizes = sizes


class _BoundGraph:
    """A graph tied to one cache; see `BoundGraph`."""

    def __init__(self, session: OnnxRuntimeSession, cache: KVCache | None) -> None:
        self._session = session
        self._run: Callable[[IOBinding], None] = session.backend.run_with_iobinding
        self._cache = cache
        self._cache_version = cache.version if cache else 0
        # Binding a buffer takes microseconds, and decoding goes to and fro between a few numbers
        # of rows: what was bound for each stays bound.
        self._calls: dict[tuple[int, int, int], _Call] = {}
        self._call: _Call | None = None

    def prepare(self, sizes: Sizes) -> Arrays:
        """The input buffers at these sizes."""
        if self._cache is not None and self._cache.version != self._cache_version:
            self._calls.clear()  # they are bound to where the caches were
            self._call = None
            self._cache_version = self._cache.version
        call = self._call
        if call is None or call.sizes != sizes:
            key = (sizes.batch, sizes.rows, sizes.outputs)
            call = self._calls.get(key)
            if call is None:
                if len(self._calls) == MAX_CALLS:
                    del self._calls[next(iter(self._calls))]
                call = self._calls[key] = _Call(
                    self._session, self._cache.tensors if self._cache else {}
                )
            if call.sizes != sizes:
                call.resize(sizes)
            self._call = call
        return call.inputs

    def execute(self) -> Arrays:
        """Run the graph; its output buffers."""
        assert self._call is not None
        start = perf_counter()
        self._run(self._call.binding)
        self._session.busy_seconds += perf_counter() - start
        self._session.num_calls += 1
        return self._call.outputs


def list_providers() -> list[str]:
    """What this ONNX Runtime can run on."""
    return list(ort.get_available_providers())


def open_session(
    bundle: Path,
    graph: Graph,
    threads: int | None,
    providers: Sequence[Provider] = CPU_PROVIDERS,
    *,
    exact: bool = False,
    cache: SessionCache | None = None,
) -> OnnxRuntimeSession:
    """Load a graph of the bundle; raises `BundleError` if it is missing, altered or unsupported.

    `exact` is that of `open_model`; `cache` is for the CPU only.
    """
    path = bundle / graph.path
    session = None if cache is None else _open_cached(path, cache, threads, exact)
    try:
        if session is None:
            session = _load(path, _session_options(threads, exact), providers)
    except LOAD_ERRORS as error:
        raise BundleError(
            f"load {path} in ONNX Runtime {ort.get_version_string()}",
            str(error).strip(),
            "export the checkpoint again; if the message names an operator, update onnxruntime",
        ) from error
    problem = _find_mismatch(graph.inputs, session.get_inputs())
    problem = problem or _find_mismatch(graph.outputs, session.get_outputs())
    if problem:
        raise BundleError(
            f"load {path}",
            f"the graph is not the one its manifest describes: {problem}",
            "export the checkpoint again",
        )
    return OnnxRuntimeSession(session, graph)


def _load(
    path: Path, options: ort.SessionOptions, providers: Sequence[Provider] = CPU_PROVIDERS
) -> InferenceSession:
    with huge_pages():
        return InferenceSession(path, options, providers=list(providers))


def _open_cached(
    path: Path, cache: SessionCache, threads: int | None, exact: bool
) -> InferenceSession | None:
    """The session out of the cache, put there first where it is not; None if that fails."""
    options = _session_options(threads, exact)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # done already
    try:
        backend = f"{ort.get_version_string()}, {ort.get_build_info()}, exact={exact}"
        made_from = cache.describe(path, backend)
        model = cache.find(made_from) or cache.store(
            made_from, lambda target: _save_optimized(path, target, exact)
        )
        try:
            return _load(model, options)
        except LOAD_ERRORS:
            cache.discard(made_from)
            raise
    # TypeError: of a path with stray bytes, which ONNX Runtime cannot be given.
    except (*LOAD_ERRORS, OSError, RuntimeError, TypeError, ValueError) as error:
        [reason, *_] = str(error).splitlines() or [type(error).__name__]
        logger.warning("%s is opened without the session cache %s: %s", path, cache.folder, reason)
        return None


def _save_optimized(path: Path, target: Path, exact: bool) -> None:
    """Have ONNX Runtime write the graph as it would run it, its weights in a file beside.

    They are as the graph reads them, float32 or codes, not as kernels pack them: those take twice
    the room, and are mapped from the file, where they get no huge pages (benchmarks/results.md).
    """
    options = _session_options(1, exact)
    options.log_severity_level = 3  # it warns that the file is for this processor: that is the key
    options.optimized_model_filepath = str(target)
    for name, value in (
        ("session.optimized_model_external_initializers_file_name", WEIGHTS_NAME),
        ("session.disable_prepacking", "1"),  # of a session that never runs
    ):
        options.add_session_config_entry(name, value)
    InferenceSession(path, options, providers=list(CPU_PROVIDERS))


def _bind_tensors(
    infos: Sequence[TensorInfo], caches: Mapping[str, CacheTensor], bind: _Bind
) -> dict[str, _Buffer]:
    """Bind the caches among these tensors; a buffer for each of the others."""
    buffers = {}
    for info in infos:
        if info.name in caches:
            cache = caches[info.name]
            bind(info.name, "cpu", 0, np.float32, cache.shape, cache.block.address)
        else:
            buffers[info.name] = _Buffer(info, bind)
    return buffers


def _session_options(threads: int | None, exact: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    # By default idle threads spin for long. A graph per segment means a pool per segment, and
    # whatever else runs on the machine wants a core, too: on two busy cores a step of a 135M
    # decoder took 184 ms like that and 89 ms with these, one of a 12-layer N-vium 169 and 26 ms.
    # Not spinning at all was no better, and has to wake the threads for every operator.
    options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_MICROSECONDS)
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry(
        "session.qdq_matmulnbits_accuracy_level", "0" if exact else "4"
    )
    return options


def _find_mismatch(wanted: list[TensorInfo], found: Sequence[ort.NodeArg]) -> str | None:
    """Where the manifest's tensors and the graph's differ in name, type or shape."""
    expected = {info.name: (info.dtype, list(info.shape)) for info in wanted}
    actual = {arg.name: (DTYPES.get(arg.type, arg.type), list(arg.shape)) for arg in found}
    for name in sorted(expected.keys() | actual.keys()):
        if expected.get(name) != actual.get(name):
            return f"{name} should be {expected.get(name)} and is {actual.get(name)}"
    return None
