"""Times work on the GPU: as a CUDA graph, from a cold L2 cache."""

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

__all__ = ["GpuTimer"]

_FLUSH_BYTES = 256 * 2**20  # several times the L2 cache of any GPU there is
_COPY_BYTES = 2**30
_NUM_WARM_UPS = 3
_cuda: Any = torch.cuda  # its events and streams have no types


class GpuTimer:
    """Medians over `num_runs` replays.

    A call is captured in a CUDA graph, so that it costs what it costs in an engine, not what Python
    takes to launch it. Starting a graph takes the GPU a moment, which is in every time and is
    measured as `start_seconds`.
    """

    def __init__(self, num_runs: int = 50) -> None:
        self.num_runs = num_runs
        self._flushed = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        single = torch.zeros(1, device="cuda")
        self.start_seconds = self.measure_seconds(lambda: single.add_(1))
        self.copy_bytes_per_s = self._measure_copy()

    def measure_seconds(self, call: Callable[[], object]) -> float:
        """What a call takes; it has to launch the same on the same memory each time."""
        graph = _capture(call)
        times = []
        for _ in range(self.num_runs):
            # It also keeps the GPU busy until the graph and the events are in its queue.
            self._flushed.zero_()
            start, end = (_cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            times.append((start, end))
        torch.cuda.synchronize()
        return float(median(start.elapsed_time(end) for start, end in times)) / 1e3

    def _measure_copy(self) -> float:
        """Bytes per second that a copy within the GPU's memory reads and writes together."""
        free, _ = torch.cuda.mem_get_info()
        size = min(_COPY_BYTES, free // 4)
        source, target = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
        source.zero_()
        return 2 * size / self.measure_seconds(lambda: target.copy_(source))


def _capture(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    stream = _cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_NUM_WARM_UPS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph
