"""Bytes a step reads, held to arithmetic on the sizes of the model."""

from pathlib import Path

import pytest

from quatrain.exporter.bench.setting import Case
from quatrain.exporter.bench.traffic import open_traffic
from quatrain.exporter.export import export_checkpoint
from quatrain.runtime.manifest import load_manifest

SAMPLES = Path(__file__).parents[3] / "samples" / "checkpoints"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traffic")
    for name in ("dense", "bank-topk", "nvium"):
        export_checkpoint(SAMPLES / f"topics-{name}", folder / name, self_test=False)
    return folder


def open_bundle(bundle: Path, *, is_gathered: bool = False):
    manifest = load_manifest(bundle)
    return manifest, open_traffic(bundle, manifest, is_gathered=is_gathered)


def test_a_dense_step_reads_all_but_the_table_once_in_float32(bundles):
    manifest, traffic = open_bundle(bundles / "dense")
    backbone = manifest.spec["backbone"]
    hidden, inner = backbone["hidden_size"], backbone["intermediate_size"]
    layers, heads = backbone["num_hidden_layers"], backbone["num_attention_heads"]
    kv_heads, head_dim = backbone["num_key_value_heads"], backbone["head_dim"]
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim
    matrices = layers * (attention + 3 * hidden * inner) + manifest.vocab_size * hidden
    norms = (2 * layers + 1) * hidden
    cache = layers * 2 * kv_heads * head_dim * 4

    read = traffic.count_bytes_per_token({"decoder": 9}, Case(20, 10, 1))

    # Rotary tables are looked up by row, so they do not count.
    assert read == 4 * (matrices + norms) + cache * 25
    assert traffic.feed_forward_share is None


def test_a_batch_shares_the_weights_and_not_the_caches(bundles):
    _, traffic = open_bundle(bundles / "dense")

    alone = traffic.count_bytes_per_token({"decoder": 9}, Case(20, 10, 1))
    together = traffic.count_bytes_per_token({"decoder": 9}, Case(20, 10, 4))

    cache = traffic.cache_bytes["decoder"] * 25
    assert together - cache == pytest.approx((alone - cache) / 4, abs=1)


def test_a_gathered_row_reads_its_share_of_the_channels_and_the_predictor(bundles):
    manifest, gathered = open_bundle(bundles / "bank-topk", is_gathered=True)
    _, whole = open_bundle(bundles / "bank-topk")
    banks, backbone = manifest.spec["feed_forward"], manifest.spec["backbone"]
    matrices = 3 * backbone["hidden_size"] * backbone["intermediate_size"] * 4
    left_out = 1 - banks["top_k"] / banks["bank_size"]

    saved = whole.weight_bytes["decoder"] - gathered.weight_bytes["decoder"]

    assert saved == matrices * left_out * backbone["num_hidden_layers"]
    predictor = banks["predictor_rank"] * (backbone["hidden_size"] + backbone["intermediate_size"])
    assert gathered.feed_forward_share == pytest.approx(1 - left_out + 4 * predictor / matrices)


def test_every_segment_counts_as_often_as_it_was_called(bundles):
    manifest, traffic = open_bundle(bundles / "nvium")
    first, second = (graph.name for graph in manifest.graphs[:2])
    calls = dict.fromkeys((graph.name for graph in manifest.graphs), 0)
    case = Case(8, 11, 1)

    once = traffic.count_bytes_per_token(calls | {first: 10}, case)
    both = traffic.count_bytes_per_token(calls | {first: 10, second: 5}, case)

    per_call = traffic.weight_bytes[second] + traffic.cache_bytes[second] * 13
    assert both - once == per_call // 2


def test_a_quantized_step_reads_codes_and_scales(tmp_path):
    """int4: half a byte a weight and a float32 scale for 32 of them; the head has a byte each."""
    bundle = tmp_path / "bundle"
    export_checkpoint(SAMPLES / "topics-dense", bundle, self_test=False, quantize="int4")
    manifest, traffic = open_bundle(bundle)
    backbone = manifest.spec["backbone"]
    hidden, layers = backbone["hidden_size"], backbone["num_hidden_layers"]
    heads, kv_heads = backbone["num_attention_heads"], backbone["num_key_value_heads"]
    attention = 2 * hidden * (heads + kv_heads) * backbone["head_dim"]
    matrices = layers * (attention + 3 * hidden * backbone["intermediate_size"])
    head = manifest.vocab_size * hidden
    norms = (2 * layers + 1) * hidden

    scales = (matrices + head) // 32
    assert traffic.weight_bytes["decoder"] == matrices // 2 + head + 4 * (scales + norms)


def test_streams_keep_a_row_of_each_in_every_layer_but_read_the_weights_once(tmp_path):
    bundle = tmp_path / "bundle"
    export_checkpoint(SAMPLES / "topics-hidden-decoding", bundle, self_test=False)
    manifest, traffic = open_bundle(bundle)
    backbone, streams = manifest.spec["backbone"], manifest.cache.rows_per_token
    hidden, layers = backbone["hidden_size"], backbone["num_hidden_layers"]
    heads, kv_heads = backbone["num_attention_heads"], backbone["num_key_value_heads"]
    attention = 2 * hidden * (heads + kv_heads) * backbone["head_dim"]
    matrices = layers * (attention + 3 * hidden * backbone["intermediate_size"])
    row = 2 * kv_heads * backbone["head_dim"] * 4
    weights = matrices + manifest.vocab_size * hidden + (2 * layers + 1) * hidden

    assert streams == 2
    assert traffic.weight_bytes["decoder"] == 4 * weights
    # Layers that only the mirrored rows leave keep fewer, which the manifest lists.
    kept = sum(layer.num_heads for layer in manifest.cache.layers if layer.unit == "tokens")
    kept += 2 * sum(layer.num_heads for layer in manifest.cache.layers if layer.unit == "rows")
    assert traffic.cache_bytes["decoder"] == kept // kv_heads * row <= streams * layers * row
