"""Writes down the calls of graphs: every input, caches included, and every output."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from quatrain.runtime.kv_cache import KVCache
from quatrain.runtime.manifest import TensorInfo
from quatrain.runtime.session import Arrays, BoundGraph, Model, Session, Sizes

__all__ = ["Call", "Recording"]

Call = tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]
"""The inputs and the outputs of one call, by name."""

_MAX_CALLS = 3


class Recording:
    """While it is open, the first calls of each graph of a model are kept in `calls`."""

    def __init__(self, model: Model) -> None:
        self.calls: dict[str, list[Call]] = {name: [] for name in model.sessions}
        self._model = model
        self._sessions = dict(model.sessions)

    def __enter__(self) -> Self:
        for name, session in self._sessions.items():
            self._model.sessions[name] = _RecordedSession(session, self.calls[name])
        return self

    def __exit__(self, *_: object) -> None:
        self._model.sessions.update(self._sessions)


class _RecordedSession:
    def __init__(self, session: Session, calls: list[Call]) -> None:
        self._session = session
        self._calls = calls

    @property
    def inputs(self) -> list[TensorInfo]:
        return self._session.inputs

    @property
    def busy_seconds(self) -> float:
        return self._session.busy_seconds

    @property
    def num_calls(self) -> int:
        return self._session.num_calls

    def bind(self, cache: KVCache | None = None) -> BoundGraph:
        names = [info.name for info in self._session.inputs]
        return _RecordedGraph(self._session.bind(cache), cache, names, self._calls)

    def close(self) -> None:
        self._session.close()


class _RecordedGraph:
    def __init__(
        self, graph: BoundGraph, cache: KVCache | None, names: list[str], calls: list[Call]
    ) -> None:
        self._graph = graph
        self._cache = cache
        self._names = names
        self._calls = calls
        self._inputs: Arrays = {}

    def prepare(self, sizes: Sizes) -> Arrays:
        self._inputs = self._graph.prepare(sizes)
        return self._inputs

    def execute(self) -> Arrays:
        if len(self._calls) == _MAX_CALLS:
            return self._graph.execute()
        caches = {} if self._cache is None else self._cache.tensors
        used = {name: tensor for name, tensor in caches.items() if name in self._names}
        inputs: dict[str, NDArray[Any]] = {
            name: np.array(array) for name, array in self._inputs.items()
        }
        inputs |= {name: tensor.array.copy() for name, tensor in used.items()}
        results = self._graph.execute()
        outputs: dict[str, NDArray[Any]] = {name: np.array(a) for name, a in results.items()}
        outputs |= {f"updated_{name}": tensor.array.copy() for name, tensor in used.items()}
        self._calls.append((inputs, outputs))
        return results
