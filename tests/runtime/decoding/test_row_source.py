"""What a graph's first input is filled with, and a model whose embeddings stay on the host."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.runtime.embedded_bundle import (
    CAPACITY,
    HIDDEN,
    MAX_SEQ_LEN,
    NUM_ROWS,
    VOCAB,
    write_bundle,
)

from quatrain.exporter import export_checkpoint
from quatrain.runtime.decoding import (
    ArgmaxRouting,
    PiggybackDecoder,
    PlainDecoder,
    score_exits,
    score_tokens,
)
from quatrain.runtime.decoding.history import TokenHistory
from quatrain.runtime.decoding.row_runner import RowRunner
from quatrain.runtime.decoding.row_source import ArrayRows, EmbeddedTokens, choose_token_source
from quatrain.runtime.errors import BundleError, RequestError
from quatrain.runtime.manifest import Graph, TensorInfo
from quatrain.runtime.session import Arrays, Model, Sizes, open_model, resolve_shape

SHAPES: dict[str, tuple[list[int | str], type[np.generic]]] = {
    "inputs_embeds": (["batch", "rows", VOCAB], np.float32),
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
        inputs: Arrays = {}
        for name, (shape, dtype) in SHAPES.items():
            inputs[name] = np.full(resolve_shape(shape, sizes), 1, dtype)
        self.calls.append(inputs)
        return inputs

    def execute(self) -> Arrays:
        return {}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens of three rows, in bfloat16."""
    return tmp_path_factory.mktemp("embedded") / "bundle"


@pytest.fixture(scope="module")
def table(bundle: Path) -> NDArray[np.float32]:
    """The rows of each token, side by side."""
    return write_bundle(bundle, "bfloat16")


@pytest.fixture
def model(bundle: Path, table: NDArray[np.float32]) -> Iterator[Model]:
    """The bundle, opened."""
    with open_model(bundle, backend="onnxruntime", threads=1) as opened:
        yield opened


def test_arrays_are_copied_from_where_each_row_starts() -> None:
    array = np.arange(2 * 9 * 3, dtype=np.float32).reshape(2, 9, 3)
    source = ArrayRows("hidden", array)
    assert (source.input_name, source.capacity) == ("hidden", 9)
    out = np.zeros((2, 4, 3), np.float32)
    source.fill([5, 1], 4, out)
    assert (out == np.stack([array[0, 5:9], array[1, 1:5]])).all()


def test_a_model_with_the_tables_in_its_graph_takes_ids(nvium: Model) -> None:
    history = TokenHistory(nvium.manifest, 2)
    source = choose_token_source(nvium, history)
    history.append([0, 0], [[3, 4], [5]])
    out = np.full((2, 2), -1)
    source.fill([0, 0], 2, out)
    assert nvium.embeddings is None
    assert source.input_name == "input_ids"
    assert source.capacity == nvium.manifest.cache.capacity
    assert out.tolist() == [[3, 4], [5, 0]]


def test_a_model_with_tables_on_the_host_takes_their_rows(
    model: Model, table: NDArray[np.float32]
) -> None:
    """Rows that differ in where they start and how much they run; padding is some token's."""
    history = TokenHistory(model.manifest, 2)
    source = choose_token_source(model, history)
    assert isinstance(source, EmbeddedTokens)
    graph = RecordingGraph()
    runner = RowRunner(graph, model.allocate_cache(2), source, 16)
    history.append([0, 0], [list(range(VOCAB)), [5, 6, 7]])
    (call,) = runner.run([9, 2], [12, 3])
    assert call.counts == [3, 1]
    (inputs,) = graph.calls
    assert (inputs["inputs_embeds"][0] == table[[9, 10, 11]]).all()
    assert (inputs["inputs_embeds"][1] == table[[7, 0, 0]]).all()
    assert inputs["write_indices"].tolist() == [9, 2]


def test_padding_at_the_end_of_the_cache_is_valid(model: Model) -> None:
    history = TokenHistory(model.manifest, 2)
    graph = RecordingGraph()
    runner = RowRunner(graph, model.allocate_cache(2), choose_token_source(model, history), 16)
    history.append([0, 0], [[1] * MAX_SEQ_LEN, [2] * 8])
    list(runner.run([MAX_SEQ_LEN, 0], [MAX_SEQ_LEN, 8]))
    assert [inputs["inputs_embeds"].shape[1] for inputs in graph.calls] == [3, 3, 2]
    assert all(np.isfinite(inputs["inputs_embeds"]).all() for inputs in graph.calls)


def assert_cache_holds(
    decoder: PlainDecoder, table: NDArray[np.float32], tokens: list[list[int]]
) -> None:
    """Stream s of token i lies at row position i * n + s."""
    for tensor in decoder.cache.tensors.values():
        assert tensor.shape == (len(tokens), 1, CAPACITY * NUM_ROWS, HIDDEN)
        for b, row in enumerate(tokens):
            expected = table[row].reshape(-1, HIDDEN)
            assert (tensor.array[b, 0, : len(expected)] == expected).all()


def test_decoding_goes_on_token_by_token(model: Model, table: NDArray[np.float32]) -> None:
    """A prompt longer than a chunk beside a short one, then single tokens, with rows that wait."""
    rng = np.random.default_rng(3)
    decoder = PlainDecoder(model, 3)
    fed: list[list[int]] = [[], [], []]
    for counts in (
        [20, 1, 0],
        [1, 1, 1],
        [0, 1, 5],
        [1, 1, 1],
        [MAX_SEQ_LEN - 22, 1, 0],
        [0, 1, 1],
    ):
        new = [rng.integers(0, VOCAB, count).tolist() for count in counts]
        out = decoder.feed(new)
        for b, row in enumerate(new):
            fed[b] += row
            if row:
                assert (out.logits[b] == table[row[-1]]).all()
    assert decoder.lengths.tolist() == [len(row) for row in fed]
    assert len(fed[0]) == MAX_SEQ_LEN
    assert_cache_holds(decoder, table, fed)


def test_every_position_is_scored(model: Model, table: NDArray[np.float32]) -> None:
    ids = np.random.default_rng(4).integers(0, VOCAB, (2, MAX_SEQ_LEN))
    assert (score_tokens(model, ids) == table[ids]).all()


def test_exits_work_the_same_with_the_table_on_the_host(
    nvium: Model, nvium_checkpoint: Path, golden: dict[str, NDArray[np.int64]], tmp_path: Path
) -> None:
    """The golden model exported anew: segments, heads and what is deferred, bit for bit."""
    export_checkpoint(nvium_checkpoint, tmp_path / "b", embeddings="host", self_test=False)
    with open_model(tmp_path / "b", backend="onnxruntime", threads=1) as on_host:
        first, second = (inputs[0].name for inputs in map(read_inputs, on_host.manifest.graphs[:2]))
        assert (first, second) == ("inputs_embeds", "hidden")
        ids = golden["input_ids"]
        assert (score_exits(on_host, ids).exit_logits == score_exits(nvium, ids).exit_logits).all()
        decoder = PiggybackDecoder(on_host, 1, [ArgmaxRouting()])
        out = decoder.feed(golden["prompt_ids"].tolist())
        for token, exit_index in zip(
            golden["generated_ids"], golden["generated_exit"], strict=True
        ):
            assert (out.logits[0].argmax(), out.exits[0]) == (token, exit_index)
            out = decoder.feed([[int(token)]])


def read_inputs(graph: Graph) -> list[TensorInfo]:
    assert [i.name for i in graph.inputs] == [i.name for i in graph.deployment.inputs]
    return graph.inputs


def test_an_id_outside_the_tables_never_reaches_them(model: Model) -> None:
    decoder = PlainDecoder(model, 1)
    for wrong in (VOCAB, -1):
        with pytest.raises(RequestError, match=f"the token id {wrong}"):
            decoder.feed([[wrong]])


def test_a_closed_model_refuses(bundle: Path, table: NDArray[np.float32]) -> None:
    model = open_model(bundle, backend="onnxruntime", threads=1)
    decoder = PlainDecoder(model, 1)
    decoder.feed([[1]])
    model.close()
    with pytest.raises(RuntimeError, match="closed"):
        decoder.feed([[1]])


def test_a_bundle_without_its_tables_does_not_open(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle")
    (tmp_path / "bundle" / "a.safetensors").unlink()
    with pytest.raises(BundleError, match=r"the embeddings in .*a\.safetensors"):
        open_model(tmp_path / "bundle", backend="onnxruntime")
