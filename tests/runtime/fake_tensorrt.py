"""Stands in for a GPU with TensorRT: a device that is host memory, engines that ONNX Runtime runs.

It is strict where the real ones are silent: what is queued happens only in `synchronize`, memory
given back is poisoned, and a context runs only with every shape and address set, and shapes
inside its profile.
"""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from quatrain.runtime.manifest import GraphVariant, Profile

DTYPES = {"int64": np.int64, "bool": np.bool_, "float32": np.float32}
STREAM = 7


class FakeDevice:
    """Device and pinned memory out of NumPy, and a queue."""

    def __init__(self) -> None:
        self.stream = STREAM
        self.blocks: dict[int, np.ndarray] = {}
        self.queue: list[Callable[[], object]] = []
        self.num_free_bytes = 1 << 30

    def allocate(self, num_bytes: int) -> int:
        if num_bytes > self.num_free_bytes:
            raise MemoryError
        block = np.zeros(num_bytes, np.uint8)
        self.blocks[block.ctypes.data] = block
        return block.ctypes.data

    def allocate_pinned(self, num_bytes: int) -> int:
        return self.allocate(num_bytes)

    def free(self, address: int) -> None:
        assert not self.queue
        self.blocks.pop(address)[:] = 0xA5

    def free_pinned(self, address: int) -> None:
        self.free(address)

    def copy_in(self, device: int, host: int, num_bytes: int) -> None:
        self._copy(device, host, num_bytes)

    def copy_out(self, host: int, device: int, num_bytes: int) -> None:
        self._copy(host, device, num_bytes)

    def synchronize(self) -> None:
        for task in self.queue:
            task()
        self.queue.clear()

    def _copy(self, target: int, source: int, num_bytes: int) -> None:
        assert num_bytes <= self.blocks[target].size
        assert num_bytes <= self.blocks[source].size
        self.queue.append(lambda: ctypes.memmove(target, source, num_bytes))


class FakeContext:
    """An execution context over ONNX Runtime."""

    def __init__(self, engine: "FakeEngine") -> None:
        self.engine = engine
        self.profile = 0
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        assert not self.shapes, "the profile of a context in use is never switched"
        self.profile = profile_index
        return stream_handle == STREAM

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        low, _, high = self.engine.profiles[self.profile].shapes[name]
        self.shapes[name] = shape
        return all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True))

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self.addresses[name] = memory
        return memory in self.engine.device.blocks

    def execute_async_v3(self, stream_handle: int) -> bool:
        names = {self.engine.get_tensor_name(i) for i in range(self.engine.num_io_tensors)}
        if stream_handle != STREAM or set(self.addresses) != names:
            return False
        binding = self.engine.session.io_binding()
        graph = self.engine.graph
        sizes = {
            symbol: size
            for info in graph.inputs
            for symbol, size in zip(info.shape, self.shapes[info.name], strict=True)
        }
        for infos, bind in (
            (graph.inputs, binding.bind_input),
            (graph.outputs, binding.bind_output),
        ):
            for info in infos:
                shape = [sizes.get(size, size) for size in info.shape]
                address = self.addresses[info.name]
                assert np.prod(shape) <= self.engine.device.blocks[address].size
                bind(info.name, "cpu", 0, DTYPES[info.dtype], shape, address)
        self.engine.device.queue.append(lambda: self.engine.session.run_with_iobinding(binding))
        return True


class FakeEngine:
    """A deserialized engine of an fp32 graph."""

    def __init__(
        self, bundle: Path, graph: GraphVariant, profiles: Sequence[Profile], device: FakeDevice
    ) -> None:
        self.graph = graph
        self.profiles = profiles
        self.device = device
        self.session = onnxruntime.InferenceSession(bundle / graph.path)
        self.contexts: list[FakeContext] = []

    @property
    def num_io_tensors(self) -> int:
        return len(self.graph.inputs) + len(self.graph.outputs)

    def get_tensor_name(self, index: int) -> str:
        return [*self.graph.inputs, *self.graph.outputs][index].name

    def create_execution_context(self) -> FakeContext:
        self.contexts.append(FakeContext(self))
        return self.contexts[-1]
