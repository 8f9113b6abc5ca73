"""The bills of memory, for decoders that exist in numbers only."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.exporter.checkpoint.folders import BACKBONE, EXITS

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.names import expected_tensors
from quatrain.exporter.decoder.graphs import build_graphs
from quatrain.exporter.memory import WeightBill, bill_cache, bill_weights
from quatrain.exporter.options import ExportRequest, settle_options
from quatrain.exporter.plan import make_plan
from quatrain.exporter.spec import Backbone, BankTopK, DecoderSpec, GateMode, Streams

# Sequential Hidden Decoding 8B: Qwen3-8B with n tables, every layer cross-stream.
QWEN3_8B = Backbone("qwen3", 151_936, 4096, 12_288, 36, 32, 8, 128, 40_960, qk_norm=True)
TABLE_BYTES = 151_936 * 4096 * 2
KIB = 1024

TINY = replace(BACKBONE, num_hidden_layers=4)
TINY_TABLE = 48 * 16 * 2


def list_tensors(spec: DecoderSpec, dtype: str = "BF16") -> dict[str, LazyTensor]:
    """The tensors of a decoder, in a file that is not there."""
    tensors = {}
    for name, shape in expected_tensors(spec).items():
        tensor = LazyTensor(name, Path("none.safetensors"), dtype, shape, 0, 0, name)
        tensors[name] = replace(tensor, nbytes=tensor.size * (4 if dtype == "F32" else 2))
    return tensors


def bill(spec: DecoderSpec, dtype: str = "BF16") -> tuple[int, WeightBill, WeightBill]:
    """Bytes of all tensors, each once, and the two bills."""
    tensors = list_tensors(spec, dtype)
    graph, host = bill_weights(spec, tensors)
    assert (graph.embeddings, host.embeddings) == ("graph", "host")
    return sum(tensor.nbytes for tensor in tensors.values()), graph, host


@pytest.mark.parametrize("num_streams", [1, 2, 4, 8])
def test_a_token_of_the_public_8b_takes_144_kib_for_each_row(num_streams: int) -> None:
    cache = bill_cache(DecoderSpec(QWEN3_8B, streams=Streams(num_streams)), item_bytes=2)
    assert cache.bytes_per_row == 144 * KIB
    assert cache.bytes_per_token == num_streams * 144 * KIB
    assert (cache.rows_per_token, cache.num_one_row_layers) == (num_streams, 0)


def test_the_plan_of_the_public_8b() -> None:
    spec = DecoderSpec(QWEN3_8B, streams=Streams(8))
    checkpoint = Checkpoint(
        Path("none"), spec, "bfloat16", list_tensors(spec), [], [], [], None, False, []
    )
    request = ExportRequest("bfloat16", 4096, 2, None, None, (), None, "host")
    plan = make_plan(checkpoint, settle_options(checkpoint, request))
    graph, host = plan.weights
    assert plan.weight_bytes == graph.engine_bytes == pytest.approx(25.1e9, rel=0.01)
    assert host.host_bytes == 8 * TABLE_BYTES
    assert host.engine_bytes == plan.weight_bytes - 8 * TABLE_BYTES
    assert plan.embeddings == "host" and plan.cpu_weight_bytes == host.cpu_bytes
    assert plan.kv_bytes_per_token == plan.cache.bytes_per_token == 1152 * KIB
    assert plan.kv_bytes_at_limit == 1152 * KIB * 4104 * 2
    assert plan.prefill_chunk == 64  # of 8 rows each
    assert not plan.self_test


def test_an_untied_table_leaves_the_engine_whole() -> None:
    total, graph, host = bill(DecoderSpec(TINY))
    assert (graph.engine_bytes, graph.host_bytes, graph.num_tables) == (total, 0, 0)
    assert (host.engine_bytes, host.host_bytes) == (total - TINY_TABLE, TINY_TABLE)
    assert (host.num_tables, host.is_table_kept, graph.is_table_kept) == (1, False, False)


def test_a_tied_table_is_once_in_the_graph_and_stays_there_as_the_head() -> None:
    total, graph, host = bill(DecoderSpec(replace(TINY, tie_word_embeddings=True)))
    assert graph.engine_bytes == host.engine_bytes == total
    assert host.host_bytes == TINY_TABLE and host.is_table_kept


def test_of_several_tables_only_the_first_can_be_the_head() -> None:
    spec = DecoderSpec(replace(TINY, tie_word_embeddings=True), streams=Streams(3))
    total, graph, host = bill(spec)
    assert graph.engine_bytes == total
    assert host.engine_bytes == total - 2 * TINY_TABLE
    assert (host.host_bytes, host.num_tables, host.is_table_kept) == (3 * TINY_TABLE, 3, True)


@pytest.mark.parametrize("tied", [False, True])
def test_tables_of_rows_that_nothing_reads_are_in_no_engine(tied: bool) -> None:
    spec = DecoderSpec(
        replace(TINY, tie_word_embeddings=tied), streams=Streams(4, intra_stream=(True,) * 4)
    )
    total, graph, host = bill(spec)
    assert graph.engine_bytes == total - (2 if tied else 3) * TINY_TABLE
    assert (host.engine_bytes, host.num_tables) == (total - (3 if tied else 4) * TINY_TABLE, 4)
    # The graph itself agrees.
    stored = dict.fromkeys(list_tensors(spec), "bfloat16")
    [built] = build_graphs(spec, stored, "bfloat16", 8)
    held = {name for name in built.model.graph.initializers if name in stored}
    assert graph.engine_bytes == sum(list_tensors(spec)[name].nbytes for name in held)


@pytest.mark.parametrize("gate_mode", ["sigmoid", "hard", "silu"])
def test_predictors_of_dense_layers_count_where_they_make_the_gate(gate_mode: GateMode) -> None:
    banks = BankTopK(TINY.intermediate_size // 2, 2, 3, gate_mode, None, (1,))
    spec = DecoderSpec(TINY, feed_forward=banks)
    total, graph, _ = bill(spec)
    assert (graph.engine_bytes == total) == (gate_mode == "sigmoid")
    # The graph itself agrees.
    [built] = build_graphs(spec, dict.fromkeys(list_tensors(spec), "bfloat16"), "bfloat16", 8)
    held = built.model.graph.initializers.keys() & list_tensors(spec).keys()
    assert graph.engine_bytes == sum(list_tensors(spec)[name].nbytes for name in held)


def test_with_exits_a_tied_table_is_in_two_graphs() -> None:
    tied = replace(TINY, tie_word_embeddings=True)
    total, graph, host = bill(DecoderSpec(tied, exits=EXITS))
    assert graph.engine_bytes == total + TINY_TABLE
    assert (host.engine_bytes, host.host_bytes) == (total, TINY_TABLE)


def test_with_exits_every_head_graph_has_weights_of_its_own() -> None:
    exits = replace(EXITS, early_head="embeddings")
    total, graph, host = bill(DecoderSpec(TINY, exits=exits))
    assert graph.engine_bytes == total + 2 * TINY_TABLE  # segment_0, head_0 and head_1
    assert (host.engine_bytes, host.is_table_kept) == (total + TINY_TABLE, True)


def test_on_a_cpu_graphs_are_float32_and_tables_as_they_are_stored() -> None:
    total, graph, host = bill(DecoderSpec(TINY))
    assert graph.cpu_bytes == 2 * total
    assert host.cpu_bytes == 2 * (total - TINY_TABLE) + TINY_TABLE
    total, graph, host = bill(DecoderSpec(TINY), "F32")
    assert graph.cpu_bytes == host.cpu_bytes == total


@pytest.mark.parametrize(
    ("intra_stream", "one_row_layers"),
    [
        ((), 0),
        ((True, True, True, False), 0),  # the last layer looks at every row
        ((True, False, True, True), 2),  # nothing after layer 1 looks at other streams
        ((True, True, True, True), 4),
    ],
)
def test_layers_that_keep_one_row(intra_stream: tuple[bool, ...], one_row_layers: int) -> None:
    cache = bill_cache(DecoderSpec(TINY, streams=Streams(4, intra_stream)), item_bytes=4)
    layer_row = 2 * 2 * 4 * 4  # keys and values, heads, head_dim, bytes
    assert cache.bytes_per_row == 4 * layer_row
    assert (cache.num_layers, cache.num_one_row_layers) == (4, one_row_layers)
    assert cache.bytes_per_token == (4 * 4 - 3 * one_row_layers) * layer_row
