"""The shapes an engine is built for, from symbolic dimensions and limits."""

import msgspec
import pytest
from tests.exporter.engine.engine_bundle import write_bundle

from quatrain.exporter.engine.profiles import plan_profiles
from quatrain.exporter.errors import BuildError
from quatrain.runtime.decoding.scoring import count_scored_rows
from quatrain.runtime.manifest import DraftLayout, ExitLayout, Manifest, TensorInfo, load_manifest


@pytest.fixture(scope="module")
def manifest(tmp_path_factory) -> Manifest:
    return load_manifest(write_bundle(tmp_path_factory.mktemp("profiles") / "bundle"))


def plan(manifest: Manifest) -> dict[str, dict[str, list[list[int]]]]:
    return {p.name: p.shapes for p in plan_profiles(manifest.graphs[0], manifest)}


def with_limits(manifest: Manifest, **limits: int) -> Manifest:
    return msgspec.structs.replace(
        manifest, limits=msgspec.structs.replace(manifest.limits, **limits)
    )


def test_prefill_runs_a_chunk_and_may_want_all_its_logits(manifest):
    shapes = plan(manifest)["prefill"]

    assert shapes["input_ids"] == [[1, 1], [1, 16], [2, 16]]
    assert shapes["attention_mask"] == [[1, 1, 1, 1], [1, 1, 16, 16], [2, 1, 16, 48]]
    assert shapes["output_rows"] == [[1, 1], [1, 1], [2, 16]]
    assert shapes["key_cache.0"] == [[1, 2, 48, 16], [1, 2, 48, 16], [2, 2, 48, 16]]


def test_decode_runs_one_row(manifest):
    shapes = plan(manifest)["decode"]

    assert shapes["input_ids"] == [[1, 1], [1, 1], [2, 1]]
    assert shapes["attention_mask"] == [[1, 1, 1, 1], [1, 1, 1, 16], [2, 1, 1, 48]]
    assert shapes["output_rows"] == [[1, 1], [1, 1], [2, 1]]


def test_an_engine_has_a_batch_of_two_that_its_bundle_may_not_need(manifest):
    """For one row and no other TensorRT would keep the weights a second time."""
    shapes = plan(with_limits(manifest, max_batch=1))

    assert shapes["decode"]["input_ids"] == [[1, 1], [1, 1], [2, 1]]
    assert shapes["prefill"]["input_ids"] == [[1, 1], [1, 16], [2, 16]]


@pytest.mark.parametrize(("position", "rows"), [(0, 1), (1, 5), (2, 5)])
def test_behind_an_exit_decode_also_runs_the_deferred_rows(manifest, position, rows):
    segments = ["a", "b", "c"]
    graph = msgspec.structs.replace(manifest.graphs[0], name=segments[position])
    exits = ExitLayout(layers=[1, 2, 3], segments=segments, heads=["h", "h", "h"])
    staged = msgspec.structs.replace(manifest, exits=exits)

    decode = plan_profiles(graph, staged)[1]

    assert decode.shapes["input_ids"][2] == [2, rows]
    assert decode.shapes["output_rows"][2] == [2, 1]


def with_drafter(manifest: Manifest, **limits: int) -> Manifest:
    """The decoder with a drafter, whose graph has the batch alone."""
    state, token = (
        TensorInfo(name="state", dtype="float32", shape=["batch", 32]),
        TensorInfo(name="input_ids", dtype="int64", shape=["batch"]),
    )
    decoder = manifest.graphs[0]
    deployment = msgspec.structs.replace(decoder.deployment, inputs=[state, token])
    drafter = msgspec.structs.replace(
        decoder, name="drafter", role="drafter", deployment=deployment
    )
    return msgspec.structs.replace(
        with_limits(manifest, **limits),
        graphs=[decoder, drafter],
        drafter=DraftLayout(graph="drafter"),
    )


def test_with_a_drafter_decode_also_verifies_what_was_drafted(manifest):
    shapes = plan(with_drafter(manifest, max_draft=8))["decode"]

    assert shapes["input_ids"] == [[1, 1], [1, 5], [2, 9]]
    assert shapes["attention_mask"] == [[1, 1, 1, 1], [1, 1, 5, 16], [2, 1, 9, 48]]
    assert shapes["output_rows"] == [[1, 1], [1, 5], [2, 9]]
    assert plan(with_drafter(manifest, max_draft=8))["prefill"] == plan(manifest)["prefill"]


def test_no_more_is_drafted_than_the_cache_holds(manifest):
    shapes = plan(with_drafter(manifest, max_draft=100))["decode"]

    assert shapes["input_ids"][2] == shapes["output_rows"][2] == [2, 48]


def test_a_drafter_has_one_profile_of_batches(manifest):
    drafting = with_drafter(manifest)
    [profile] = plan_profiles(drafting.graph("drafter"), drafting)

    assert profile.name == "decode"
    assert profile.shapes == {
        "state": [[1, 32], [1, 32], [2, 32]],
        "input_ids": [[1], [1], [2]],
    }


def test_no_more_rows_than_the_cache_holds(manifest):
    shapes = plan(with_limits(manifest, prefill_chunk=512))["prefill"]

    assert shapes["input_ids"] == [[1, 1], [1, 48], [2, 48]]


def test_host_embeddings_and_caches_of_layers_have_shapes_of_their_own(manifest):
    graph = manifest.graphs[0]
    inputs = [
        TensorInfo(name="inputs_embeds", dtype="float32", shape=["batch", "rows", 3 * 32]),
        *graph.deployment.inputs[1:-4],
        TensorInfo(name="key_cache.0", dtype="float16", shape=["batch", 6, 48, 16]),
        TensorInfo(name="key_cache.1", dtype="float16", shape=["batch", 2, 3 * 48, 16]),
    ]
    deployment = msgspec.structs.replace(graph.deployment, inputs=inputs)
    plans = plan_profiles(msgspec.structs.replace(graph, deployment=deployment), manifest)
    prefill, decode = (p.shapes for p in plans)

    assert prefill["inputs_embeds"] == [[1, 1, 96], [1, 16, 96], [2, 16, 96]]
    assert decode["inputs_embeds"] == [[1, 1, 96], [1, 1, 96], [2, 1, 96]]
    assert prefill["position_ids"] == [[1, 1], [1, 16], [2, 16]]
    assert prefill["key_cache.0"] == [[1, 6, 48, 16], [1, 6, 48, 16], [2, 6, 48, 16]]
    assert prefill["key_cache.1"] == [[1, 2, 144, 16], [1, 2, 144, 16], [2, 2, 144, 16]]
    # A mask is of tokens, whatever number of rows a token is.
    assert prefill["attention_mask"] == [[1, 1, 1, 1], [1, 1, 16, 16], [2, 1, 16, 48]]


def test_an_unknown_dimension_is_refused(manifest):
    graph = manifest.graphs[0]
    odd = TensorInfo(name="odd", dtype="int64", shape=["batch", "streams"])
    deployment = msgspec.structs.replace(graph.deployment, inputs=[odd])

    with pytest.raises(BuildError, match="odd"):
        plan_profiles(msgspec.structs.replace(graph, deployment=deployment), manifest)


def test_a_large_vocabulary_bounds_the_rows_that_are_scored(manifest):
    cache = msgspec.structs.replace(manifest.cache, capacity=4104)
    large = msgspec.structs.replace(manifest, vocab_size=151_936, cache=cache)
    large = with_limits(large, max_seq_len=4096, prefill_chunk=512)
    shapes = plan(large)["prefill"]

    assert shapes["input_ids"][2][1] == 512
    assert shapes["output_rows"][2][1] == count_scored_rows(large, 1) == 110
    assert shapes["output_rows"][1][1] == 1
