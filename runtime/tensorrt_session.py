"""TensorRT and TensorRT-RTX on an NVIDIA GPU: caches stay on the device, the rest is copied.

Written against the Python APIs of tensorrt-rtx 1.7 and cuda-python 12.9 and tested with a stand-in
for both; it has not yet been run on a GPU by us.
"""

import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.cuda_device import CudaDevice, Device, DeviceMemory, PinnedMemory
from quatrain.runtime.engine_choice import (
    EngineSet,
    choose_engines,
    choose_profile,
    require_engines,
)
from quatrain.runtime.engine_plugins import raise_plugin_problems, require_plugins
from quatrain.runtime.errors import EngineError, fix_reading
from quatrain.runtime.kv_cache import KVCache
from quatrain.runtime.manifest import Engine, GraphVariant, Manifest, Profile, TensorInfo
from quatrain.runtime.session import Arrays, BoundGraph, Session, Sizes, resolve_shape

__all__ = [
    "CudaEngine",
    "ExecutionContext",
    "FoundEngines",
    "TensorRTSession",
    "find_engines",
    "open_sessions",
]

MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}


class ExecutionContext(Protocol):
    """TensorRT's `IExecutionContext`, as far as we use it."""

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        """Choose the profile, once and for all."""
        ...

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        """The shape of an input from now on."""
        ...

    def set_tensor_address(self, name: str, memory: int) -> bool:
        """Where an input or output lies on the device."""
        ...

    def execute_async_v3(self, stream_handle: int) -> bool:
        """Queue one run."""
        ...


class CudaEngine(Protocol):
    """TensorRT's `ICudaEngine`, as far as we use it."""

    @property
    def num_io_tensors(self) -> int:
        """Inputs and outputs together."""
        ...

    def get_tensor_name(self, index: int) -> str:
        """Name of an input or output."""
        ...

    def create_execution_context(self) -> ExecutionContext | None:
        """A context with the first profile, and memory of its own."""
        ...


class TensorRTSession:
    """One engine, with an execution context per profile.

    A context keeps its profile, since switching one waits for the device and voids whatever was
    captured from it.
    """

    def __init__(
        self,
        engine: CudaEngine,
        graph: GraphVariant,
        profiles: Sequence[Profile],
        device: Device,
    ) -> None:
        self.inputs = graph.inputs
        self.outputs = graph.outputs
        self.profiles = profiles
        self.device = device
        self.busy_seconds = 0.0
        self.num_calls = 0
        self._engine: CudaEngine | None = engine
        self._contexts: dict[int, ExecutionContext] = {}
        # Whose shapes and addresses a context has: a token, so that it keeps no cache alive.
        self._owners: dict[int, object] = {}

    def bind(self, cache: KVCache | None = None) -> BoundGraph:
        """Tie the graph to a cache (None: it has no caches)."""
        return _BoundEngine(self, cache)

    def close(self) -> None:
        """Give up the contexts and the engine."""
        self._owners.clear()
        self._contexts.clear()
        self._engine = None

    def claim_context(self, profile: int, owner: object) -> tuple[ExecutionContext, bool]:
        """The context of a profile, and whether `owner` was the last to claim it."""
        if self._engine is None:
            raise RuntimeError("this model is closed")
        if profile not in self._contexts:
            self._contexts[profile] = self._create_context(self._engine, profile)
        is_own = self._owners.get(profile) is owner
        self._owners[profile] = owner
        return self._contexts[profile], is_own

    def _create_context(self, engine: CudaEngine, profile: int) -> ExecutionContext:
        context = engine.create_execution_context()
        if context is None:
            raise_plugin_problems("run the engine on this GPU", "build it for this GPU")
            # TensorRT returns None where the device has no memory left for it, too.
            raise MemoryError("the GPU has no memory left for an execution context")
        if not context.set_optimization_profile_async(profile, self.device.stream):
            raise RuntimeError(f"TensorRT refuses profile {profile}; its log says why")
        self.device.synchronize()
        return context


class _Buffer:
    """An input or output: host and device memory that only grow."""

    def __init__(self, info: TensorInfo, device: Device) -> None:
        self.name = info.name
        self._shape = info.shape
        self._device = device
        self._num_bytes = 0
        self.array: NDArray[np.generic] = np.zeros(0, info.dtype)

    def resize(self, sizes: Sizes) -> None:
        """Give `array`, and the device memory behind it, its shape at these sizes."""
        shape = resolve_shape(self._shape, sizes)
        dtype = self.array.dtype
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes > self._num_bytes:
            self._host = PinnedMemory(self._device, num_bytes)
            self._memory = DeviceMemory(self._device, num_bytes)
            self._num_bytes = num_bytes
        self.array = self._host.bytes[:num_bytes].view(dtype).reshape(shape)

    @property
    def address(self) -> int:
        """On the device."""
        return self._memory.address

    def copy_in(self) -> None:
        """Queue the copy to the device."""
        self._device.copy_in(self.address, self._host.address, self.array.nbytes)

    def copy_out(self) -> None:
        """Queue the copy to the host."""
        self._device.copy_out(self._host.address, self.address, self.array.nbytes)


class _BoundEngine:
    """An engine tied to one cache; see `BoundGraph`."""

    def __init__(self, session: TensorRTSession, cache: KVCache | None) -> None:
        self._session = session
        tensors = cache.tensors if cache else {}
        self._caches = [tensors[i.name] for i in session.inputs if i.name in tensors]
        updated = {f"updated_{name}" for name in tensors}
        self._inputs = [
            _Buffer(info, session.device) for info in session.inputs if info.name not in tensors
        ]
        self._outputs = [
            _Buffer(info, session.device) for info in session.outputs if info.name not in updated
        ]
        self._token = object()
        self._sizes: Sizes | None = None
        self._profile = 0
        self._is_placed = False
        self._input_arrays: Arrays = {}
        self._output_arrays: Arrays = {}

    def prepare(self, sizes: Sizes) -> Arrays:
        """The input buffers at these sizes; a `RequestError` if no profile allows them."""
        if sizes == self._sizes:
            return self._input_arrays
        self._sizes = None
        shapes = {info.name: resolve_shape(info.shape, sizes) for info in self._session.inputs}
        self._profile = choose_profile(self._session.profiles, shapes)
        for buffer in (*self._inputs, *self._outputs):
            buffer.resize(sizes)
        self._input_arrays = {buffer.name: buffer.array for buffer in self._inputs}
        self._output_arrays = {buffer.name: buffer.array for buffer in self._outputs}
        self._is_placed = False
        self._sizes = sizes
        return self._input_arrays

    def execute(self) -> Arrays:
        """Run the graph; its output buffers."""
        start = perf_counter()
        device = self._session.device
        context, is_own = self._session.claim_context(self._profile, self._token)
        if not (is_own and self._is_placed):
            self._place(context)
        for buffer in self._inputs:
            buffer.copy_in()
        if not context.execute_async_v3(device.stream):
            raise_plugin_problems("run a call", "see what it refuses, or build with --plugins off")
            raise RuntimeError("TensorRT could not run an engine; its log says why")
        for buffer in self._outputs:
            buffer.copy_out()
        device.synchronize()
        self._session.busy_seconds += perf_counter() - start
        self._session.num_calls += 1
        return self._output_arrays

    def _place(self, context: ExecutionContext) -> None:
        """Tell the context all shapes and addresses; a cache's output is its input, in place."""
        inputs = [(b.name, b.array.shape, b.address) for b in self._inputs]
        inputs += [(c.name, c.shape, c.block.address) for c in self._caches]
        outputs = [(b.name, b.address) for b in self._outputs]
        outputs += [(f"updated_{c.name}", c.block.address) for c in self._caches]
        done = all(context.set_input_shape(name, shape) for name, shape, _ in inputs)
        done = done and all(context.set_tensor_address(name, at) for name, _, at in inputs)
        if not (done and all(context.set_tensor_address(name, at) for name, at in outputs)):
            raise RuntimeError("TensorRT refuses a shape or an address; its log says why")
        self._is_placed = True


class FoundEngines(NamedTuple):
    """A GPU, and the engines of a bundle that run on it."""

    device: CudaDevice
    chosen: EngineSet


def find_engines(manifest: Manifest) -> FoundEngines:
    """The engines that this machine can run; raises `EngineError` with the reason if none."""
    require_engines(manifest)
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise EngineError(
            "an NVIDIA GPU", "cuda-python is not installed", "pip install 'quatrain[gpu]'"
        ) from error
    device = CudaDevice(runtime)
    return FoundEngines(device, choose_engines(manifest, device.sm, _installed_versions()))


def open_sessions(bundle: Path, manifest: Manifest, found: FoundEngines) -> dict[str, Session]:
    """A session per graph of the bundle; raises `EngineError` for an engine that does not load."""
    library = importlib.import_module(MODULES[found.chosen.flavour])
    require_plugins(library, bundle, list(found.chosen.engines.values()))
    runtime = library.Runtime(library.Logger(library.Logger.WARNING))
    sessions: dict[str, Session] = {}
    for name, engine in found.chosen.engines.items():
        graph = manifest.graph(name).deployment
        loaded = _load_engine(runtime, bundle, engine, graph)
        sessions[name] = TensorRTSession(loaded, graph, engine.profiles, found.device)
    return sessions


def _load_engine(runtime: Any, bundle: Path, engine: Engine, graph: GraphVariant) -> CudaEngine:
    path = bundle / engine.path
    asked = f"load the engine {path}"
    fix = f"build it again: quatrain build {bundle} --target {engine.target}"
    try:
        loaded: CudaEngine | None = runtime.deserialize_cuda_engine(path.read_bytes())
    except OSError as error:
        found = f"it cannot be read ({error.strerror or error})"
        raise EngineError(asked, found, fix_reading(error, fix)) from error
    if loaded is None:
        raise_plugin_problems(asked, fix)
        raise EngineError(asked, "TensorRT does not accept it, its log says why", fix)
    names = {loaded.get_tensor_name(index) for index in range(loaded.num_io_tensors)}
    wanted = {info.name for info in (*graph.inputs, *graph.outputs)}
    if names != wanted:
        different = ", ".join(sorted(names ^ wanted))
        raise EngineError(asked, f"its tensors are not the manifest's: {different}", fix)
    return loaded


def _installed_versions() -> dict[str, str]:
    """Version by flavour of each TensorRT that can be imported."""
    versions = {}
    for flavour, module in MODULES.items():
        try:
            versions[flavour] = str(importlib.import_module(module).__version__)
        except (ImportError, OSError):
            continue
    return versions
