"""What the one primitive hands to a graph."""

import numpy as np

from quatrain.runtime.decoding.row_runner import RowRunner
from quatrain.runtime.decoding.row_source import ArrayRows
from quatrain.runtime.kv_cache import KVCache
from quatrain.runtime.session import Arrays, Sizes, resolve_shape

CAPACITY = 70
SHAPES: dict[str, tuple[list[int | str], type[np.generic]]] = {
    "input_ids": (["batch", "rows"], np.int64),
    "position_ids": (["batch", "rows"], np.int64),
    "attention_mask": (["batch", 1, "rows", "length"], np.bool_),
    "write_indices": (["batch"], np.int64),
    "output_rows": (["batch", "outputs"], np.int64),
}


class RecordingGraph:
    """Takes inputs as a graph does, and keeps them."""

    def __init__(self) -> None:
        self.calls: list[Arrays] = []

    def prepare(self, sizes: Sizes) -> Arrays:
        self.calls.append(
            {name: np.zeros(resolve_shape(s, sizes), t) for name, (s, t) in SHAPES.items()}
        )
        return self.calls[-1]

    def execute(self) -> Arrays:
        return {}


def make_runner(chunk: int = 100) -> tuple[RecordingGraph, RowRunner]:
    graph = RecordingGraph()
    source = np.arange(2 * CAPACITY).reshape(2, CAPACITY)
    cache = KVCache(2, CAPACITY, {})
    return graph, RowRunner(graph, cache, ArrayRows("input_ids", source), chunk)


def test_rows_of_different_length_and_place() -> None:
    graph, runner = make_runner()
    (call,) = runner.run([10, 2], [13, 3])
    assert (call.starts, call.counts) == ([10, 2], [3, 1])
    (inputs,) = graph.calls
    assert inputs["position_ids"].tolist() == [[10, 11, 12], [2, 3, 4]]
    assert inputs["input_ids"].tolist() == [[10, 11, 12], [72, 73, 74]]
    assert inputs["write_indices"].tolist() == [10, 2]
    assert inputs["output_rows"].tolist() == [[2], [0]]
    keys = np.arange(32)  # the live length, 13, rounded up
    assert inputs["attention_mask"].shape == (2, 1, 3, 32)
    for b in range(2):
        for r in range(3):
            position = inputs["position_ids"][b, r]
            assert (inputs["attention_mask"][b, 0, r] == (keys <= position)).all()


def test_long_runs_are_cut_into_chunks() -> None:
    graph, runner = make_runner(chunk=4)
    calls = list(runner.run([0, 5], [10, 6]))
    assert [call.counts for call in calls] == [[4, 1], [4, 0], [2, 0]]
    assert [call.starts for call in calls] == [[0, 5], [4, 6], [8, 6]]
    # A row without anything left to run writes its padding behind its live length.
    assert [inputs["write_indices"].tolist() for inputs in graph.calls] == [[0, 5], [4, 6], [8, 6]]


def test_padding_stays_inside_the_cache() -> None:
    graph, runner = make_runner()
    calls = list(runner.run([0, CAPACITY - 3], [8, CAPACITY - 3]))
    assert [call.counts[0] for call in calls] == [3, 3, 2]
    for inputs in graph.calls:
        rows = inputs["input_ids"].shape[1]
        assert (inputs["write_indices"] + rows <= CAPACITY).all()
        assert inputs["position_ids"].max() < CAPACITY


def test_padding_may_be_put_to_use() -> None:
    _, runner = make_runner()
    (call,) = runner.run([0, 20], [3, 20], [3, 29])
    assert call.counts == [3, 3]
    (call,) = runner.run([0, 20], [3, 20], [3, 21])
    assert call.counts == [3, 1]


def test_the_mask_never_exceeds_the_capacity() -> None:
    graph, runner = make_runner()
    list(runner.run([0, 0], [CAPACITY - 1, 1]))
    assert graph.calls[0]["attention_mask"].shape[-1] == CAPACITY


def test_all_rows_can_be_asked_for() -> None:
    graph, runner = make_runner()
    list(runner.run([0, 0], [3, 3], every_row=True))
    assert graph.calls[0]["output_rows"].tolist() == [[0, 1, 2]] * 2


def test_nothing_to_run_is_no_call() -> None:
    graph, runner = make_runner()
    assert not list(runner.run([4, 5], [4, 5], [4, 9]))
    assert not graph.calls
