"""Specs refuse what no decoder can be, and cut a decoder where its exits are."""

from dataclasses import FrozenInstanceError, replace

import pytest

from quatrain.exporter.errors import SpecError
from quatrain.exporter.spec import Backbone, DecoderSpec, Exits, Router

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
    spec = DecoderSpec(BACKBONE, Exits(layers, ROUTER))
    assert spec.family == "nvium"
    assert spec.segments == segments
    assert spec.exits is not None
    assert spec.exits.num_exits == len(segments)


@pytest.mark.parametrize("layers", [(), (0, 2), (2, 2), (3, 1), (6,), (7,)])
def test_impossible_exits_are_refused(layers: tuple[int, ...]):
    with pytest.raises(SpecError, match="early_layer_idx"):
        DecoderSpec(BACKBONE, Exits(layers, ROUTER))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 3}, "head_dim"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
    ],
)
def test_impossible_backbones_are_refused(changes: dict, named: str):
    with pytest.raises(SpecError, match=named):
        replace(BACKBONE, **changes)


def test_specs_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        BACKBONE.vocab_size = 3
