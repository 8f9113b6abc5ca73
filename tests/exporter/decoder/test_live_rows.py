"""Which rows each layer computes, worked out by hand for small patterns."""

import pytest

from quatrain.exporter.decoder.cache_plan import count_cache_elements, plan_caches
from quatrain.exporter.decoder.live_rows import Rows, plan_live_rows
from quatrain.exporter.spec import Backbone, DecoderSpec, Exits, KVMirror, Router, Streams

A, L, W = Rows.ALL, Rows.LAST, Rows.WANTED


def make_spec(pattern: str, mirrors: tuple[tuple[int, int], ...] = (), n: int = 4) -> DecoderSpec:
    """`pattern` has a letter for each layer: i intra-stream, c cross-stream."""
    backbone = Backbone("llama", 48, 16, 24, len(pattern), 4, 2, 4, 64)
    streams = Streams(
        n, tuple(letter == "i" for letter in pattern), tuple(KVMirror(*m) for m in mirrors)
    )
    return DecoderSpec(backbone, streams=streams)


# For each layer: rows that enter, that keys and values are made of, that leave.
PLANS = {
    "cc": ((), [(A, A, A), (A, A, W)]),
    "ic": ((), [(A, A, A), (A, A, W)]),
    # Behind the last cross-stream layer nobody looks at any stream but the last.
    "ci": ((), [(A, A, L), (L, L, W)]),
    "icii": ((), [(A, A, A), (A, A, L), (L, L, L), (L, L, W)]),
    "ii": ((), [(L, L, L), (L, L, W)]),
    # Mirror layers take keys and values from below: they need no rows of their own but the wanted.
    "ccc": (((2, 0),), [(A, A, A), (A, A, W), (W, A, W)]),
    "cccc": (((3, 0), (2, 1)), [(A, A, A), (A, A, W), (W, A, W), (W, A, W)]),
    "iiii": (((3, 0), (2, 1)), [(L, L, L), (L, L, W), (W, L, W), (W, L, W)]),
    "iicc": (((3, 0),), [(A, A, A), (A, A, A), (A, A, W), (W, A, W)]),
    # A layer that mirrors keeps all rows of what it mirrors alive, however few pass in between.
    "iiic": (((3, 1),), [(A, A, A), (A, L, L), (L, L, W), (W, A, W)]),
    # A plain layer behind a mirror layer needs every row again.
    "cccic": (((2, 0),), [(A, A, A), (A, A, A), (A, A, A), (A, A, A), (A, A, W)]),
}


@pytest.mark.parametrize("pattern", PLANS)
def test_plan(pattern: str):
    mirrors, expected = PLANS[pattern]
    plan = plan_live_rows(make_spec(pattern, mirrors), range(len(pattern)))
    assert [(r.entering, r.keys, r.leaving) for r in plan.values()] == expected


def test_dense_last_layer_attends_with_the_wanted_rows_only():
    dense = DecoderSpec(Backbone("llama", 48, 16, 24, 3, 4, 2, 4, 64))
    plan = plan_live_rows(dense, range(3))
    assert [(r.entering, r.keys, r.leaving) for r in plan.values()] == [
        (A, A, A),
        (A, A, A),
        (A, A, W),
    ]


def test_a_graph_that_is_continued_gives_every_row():
    exits = Exits((1,), Router(1, 8, 6))
    spec = DecoderSpec(Backbone("llama", 48, 16, 24, 3, 4, 2, 4, 64), exits=exits)
    assert [r.leaving for r in plan_live_rows(spec, range(1)).values()] == [A]
    assert [r.leaving for r in plan_live_rows(spec, range(1, 3)).values()] == [A, W]


def test_the_reference_computes_all():
    plan = plan_live_rows(make_spec("ici"), range(3), skip_dead_rows=False)
    assert {(r.entering, r.keys, r.leaving) for r in plan.values()} == {(A, A, A)}


def test_caches_hold_the_rows_that_are_read():
    caches = plan_caches(make_spec("icii")).values()
    # Two key/value heads; four streams folded into the first layer's heads.
    assert [(c.num_heads, c.unit, c.positions(10)) for c in caches] == [
        (8, "tokens", 10),
        (2, "rows", 40),
        (2, "tokens", 10),
        (2, "tokens", 10),
    ]
    assert count_cache_elements(make_spec("icii")) == 2 * 4 * (8 + 4 * 2 + 2 + 2)


def test_one_stream_counts_tokens():
    caches = plan_caches(make_spec("cc", n=1)).values()
    assert {(c.num_heads, c.unit, c.positions(10)) for c in caches} == {(2, "tokens", 10)}


def test_the_public_8b_needs_144_kib_a_row():
    """36 layers, 8 key/value heads of 128, bfloat16 (families: 144 KiB a row, n rows a token)."""
    backbone = Backbone("qwen3", 151936, 4096, 12288, 36, 32, 8, 128, 32768, qk_norm=True)
    for n in (2, 4, 8):
        spec = DecoderSpec(backbone, streams=Streams(n))
        assert 2 * count_cache_elements(spec) == n * 144 * 1024
