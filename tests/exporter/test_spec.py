"""Specs refuse what no decoder can be, and cut a decoder where its exits are."""

from dataclasses import FrozenInstanceError, replace

import pytest

from quatrain.exporter.errors import SpecError
from quatrain.exporter.spec import (
    Backbone,
    BankTopK,
    DecoderSpec,
    Exits,
    KVMirror,
    Router,
    Streams,
)

BACKBONE = Backbone(
    model_type="llama",
    vocab_size=10,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=2,
    max_position_embeddings=32,
)
ROUTER = Router(num_layers=1, hidden_size=8, intermediate_size=4)


def test_a_dense_decoder_is_one_segment():
    spec = DecoderSpec(BACKBONE)
    assert spec.family == "dense"
    assert spec.segments == (range(6),)


@pytest.mark.parametrize(
    ("layers", "segments"),
    [
        ((3,), (range(3), range(3, 6))),
        ((1, 2, 5), (range(1), range(1, 2), range(2, 5), range(5, 6))),
    ],
)
def test_exits_cut_the_decoder(layers: tuple[int, ...], segments: tuple[range, ...]):
    spec = DecoderSpec(BACKBONE, exits=Exits(layers, ROUTER))
    assert spec.family == "nvium"
    assert spec.segments == segments
    assert spec.exits is not None
    assert spec.exits.num_exits == len(segments)


@pytest.mark.parametrize("layers", [(), (0, 2), (2, 2), (3, 1), (6,), (7,)])
def test_impossible_exits_are_refused(layers: tuple[int, ...]):
    with pytest.raises(SpecError, match="early_layer_idx"):
        DecoderSpec(BACKBONE, exits=Exits(layers, ROUTER))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 3}, "head_dim"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"sliding_windows": (4, None)}, "sliding windows for 2 layers"),
        ({"sliding_windows": (None, None, 0, 4, 4, 4)}, "sliding window of 0 in layer 2"),
    ],
)
def test_impossible_backbones_are_refused(changes: dict, named: str):
    with pytest.raises(SpecError, match=named):
        replace(BACKBONE, **changes)


def test_streams_of_a_decoder():
    windows = (None, 4, None, None, None, None)
    streams = Streams(4, (True, False, True, False, True, False), (KVMirror(5, 0),))
    spec = DecoderSpec(replace(BACKBONE, sliding_windows=windows), streams=streams)
    assert (spec.family, spec.num_streams) == ("hidden_decoding", 4)
    assert [spec.is_intra_stream(layer) for layer in range(6)] == list(streams.intra_stream)
    assert [spec.mirror_source(layer) for layer in (0, 4, 5)] == [None, None, 0]
    assert [spec.backbone.window(layer) for layer in range(6)] == list(windows)
    assert DecoderSpec(BACKBONE).num_streams == 1
    assert not DecoderSpec(BACKBONE, streams=Streams(2)).is_intra_stream(5)


@pytest.mark.parametrize(
    ("streams", "named"),
    [
        (Streams(0), "scale_seq_times"),
        (Streams(4, (True,) * 5), "scale_seq_attn_per_suffix_layerwise"),
        (Streams(4, (True,) * 7), "scale_seq_attn_per_suffix_layerwise"),
        (Streams(4, mirrors=(KVMirror(6, 0),)), "kv_mirror_layers and kv_mirror_imitated_layers"),
        (Streams(4, mirrors=(KVMirror(2, 2),)), "kv_mirror_layers and kv_mirror_imitated_layers"),
        (Streams(4, mirrors=(KVMirror(2, -1),)), "kv_mirror_layers and kv_mirror_imitated_layers"),
        (Streams(4, mirrors=(KVMirror(5, 0), KVMirror(5, 1))), "correct kv_mirror_layers in"),
    ],
)
def test_impossible_streams_are_refused(streams: Streams, named: str):
    with pytest.raises(SpecError, match=named):
        DecoderSpec(BACKBONE, streams=streams)


def test_streams_and_exits_do_not_go_together():
    with pytest.raises(SpecError, match="streams together with N-vium's exits"):
        DecoderSpec(BACKBONE, streams=Streams(2), exits=Exits((3,), ROUTER))


def test_families_are_named_by_their_axes():
    banks = BankTopK(8, 2, 4)
    exits = Exits((3,), ROUTER)
    families = {
        DecoderSpec(BACKBONE, feed_forward=banks).family,
        DecoderSpec(BACKBONE, feed_forward=banks, exits=exits).family,
        DecoderSpec(BACKBONE, feed_forward=banks, streams=Streams(2)).family,
    }
    assert families == {"bank_topk", "bank_topk+nvium", "hidden_decoding+bank_topk"}


@pytest.mark.parametrize(
    ("banks", "named"),
    [
        (BankTopK(0, 1, 4), "bank_size"),
        (BankTopK(5, 1, 4), "bank_size"),
        (BankTopK(8, 0, 4), "top_k"),
        (BankTopK(8, 9, 4), "top_k"),
        (BankTopK(8, 2, 0), "predictor of rank 0"),
        (BankTopK(8, 2, None), "gate_mode"),
        (BankTopK(8, 2, 4, dense_fallback_layers=(6,)), "dense_fallback_layers"),
        (BankTopK(8, 2, 4, dense_fallback_layers=(-1,)), "dense_fallback_layers"),
        (BankTopK(8, 2, 4, dense_fallback_layers=(1, 1)), "dense_fallback_layers"),
    ],
)
def test_impossible_banks_are_refused(banks: BankTopK, named: str):
    with pytest.raises(SpecError, match=named):
        DecoderSpec(BACKBONE, feed_forward=banks)


def test_banks_and_biases_do_not_go_together():
    with pytest.raises(SpecError, match="mlp_bias"):
        DecoderSpec(replace(BACKBONE, mlp_bias=True), feed_forward=BankTopK(8, 2, 4))


def test_specs_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        BACKBONE.vocab_size = 3
