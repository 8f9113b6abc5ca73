"""Rows that nothing reads are not computed: counted in the graph, with the logits unchanged."""

import numpy as np
import pytest
from tests.exporter.decoder.graph_work import Work, measure_work

from quatrain.exporter.checkpoint.names import expected_tensors
from quatrain.exporter.spec import Backbone, DecoderSpec, KVMirror, Streams

TOKENS, N = 6, 4
ALL, LAST, WANTED = N * TOKENS, TOKENS, 1


def make_spec(pattern: str, mirrors: tuple[tuple[int, int], ...] = (), n: int = N) -> DecoderSpec:
    """`pattern` has a letter for each layer: i intra-stream, c cross-stream."""
    backbone = Backbone("llama", 48, 16, 24, len(pattern), 4, 2, 4, 64)
    intra = tuple(letter == "i" for letter in pattern)
    return DecoderSpec(
        backbone, streams=Streams(n, intra, tuple(KVMirror(*pair) for pair in mirrors))
    )


def make_tensors(spec: DecoderSpec) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    shapes = expected_tensors(spec)
    return {k: rng.normal(size=s, scale=0.5).astype(np.float32) for k, s in shapes.items()}


def measure(spec: DecoderSpec, tokens: int = TOKENS) -> tuple[Work, Work]:
    """With dead rows skipped and without; their logits must agree."""
    tensors = make_tensors(spec)
    pruned, found = measure_work(spec, tensors, tokens, skip_dead_rows=True)
    plain, expected = measure_work(spec, tensors, tokens, skip_dead_rows=False)
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    return pruned, plain


def rows_of(work: Work, layer: int) -> dict[str, int]:
    prefix = f"model.layers.{layer}."
    return {
        name.removeprefix(prefix).split(".")[1]: rows
        for name, rows in work.rows.items()
        if name.startswith(prefix)
    }


def layer_rows(keys: int, leaving: int) -> dict[str, int]:
    attending = dict.fromkeys(("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), leaving)
    return {"k_proj": keys, "v_proj": keys} | attending


def test_the_plain_reference_computes_every_row():
    _, plain = measure(make_spec("cic"))
    assert all(rows_of(plain, layer) == layer_rows(ALL, ALL) for layer in range(3))


def test_of_the_last_layer_only_keys_and_values_are_whole():
    pruned, plain = measure(make_spec("cc"))
    assert rows_of(pruned, 0) == layer_rows(ALL, ALL)
    assert rows_of(pruned, 1) == layer_rows(ALL, WANTED)
    assert pruned.rows["lm_head.weight"] == WANTED
    saved = sum(plain.rows.values()) - sum(pruned.rows.values())
    assert saved == 5 * (ALL - WANTED)


def test_from_the_first_mirror_layer_on_only_wanted_rows_are_computed():
    pruned, plain = measure(make_spec("ccccc", ((4, 0), (3, 1))))
    assert rows_of(pruned, 1) == layer_rows(ALL, ALL)
    assert rows_of(pruned, 2) == layer_rows(ALL, WANTED)
    for layer in (3, 4):
        assert rows_of(pruned, layer) == layer_rows(ALL, WANTED)
    assert sum(plain.rows.values()) - sum(pruned.rows.values()) == 3 * 5 * (ALL - WANTED)


def test_behind_the_last_cross_stream_layer_one_stream_is_left():
    pruned, _ = measure(make_spec("icii"))
    assert rows_of(pruned, 0) == layer_rows(ALL, ALL)
    assert rows_of(pruned, 1) == layer_rows(ALL, LAST)
    assert rows_of(pruned, 2) == layer_rows(LAST, LAST)
    assert rows_of(pruned, 3) == layer_rows(LAST, WANTED)


def test_a_dense_prompt_needs_one_row_of_its_last_layer():
    dense = DecoderSpec(Backbone("llama", 48, 16, 24, 2, 4, 2, 4, 64))
    pruned, plain = measure(dense)
    assert rows_of(plain, 1) == layer_rows(TOKENS, TOKENS)
    assert rows_of(pruned, 0) == layer_rows(TOKENS, TOKENS)
    assert rows_of(pruned, 1) == layer_rows(TOKENS, WANTED)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_attention_is_linear_in_streams_within_a_stream_and_quadratic_across(n: int):
    """Counted from the shapes that meet in the graph, one prompt of 32 tokens."""
    work, _ = measure(make_spec("icc", n=n), tokens=32)
    dense, _ = measure(make_spec("icc", n=1), tokens=32)
    assert work.attention_flops[0] == n * dense.attention_flops[0]
    assert work.attention_flops[1] == n * n * dense.attention_flops[1]
    # The last layer: one row attends, to every row.
    assert work.attention_flops[2] == n * dense.attention_flops[2]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_equal_tables_and_no_cross_stream_layer_are_the_dense_model(n: int):
    """In every stream, that is: the plain reference computes all of them."""
    spec, dense = make_spec("iii", n=n), DecoderSpec(make_spec("iii").backbone)
    tensors = make_tensors(dense)
    _, expected = measure_work(dense, tensors, TOKENS, skip_dead_rows=True)
    tables = [name for name in expected_tensors(spec) if "scale_seq" in name]
    assert len(tables) == n - 1
    tensors |= dict.fromkeys(tables, tensors["model.embed_tokens.weight"])
    for skip_dead_rows in (True, False):
        _, found = measure_work(spec, tensors, TOKENS, skip_dead_rows=skip_dead_rows)
        assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()
