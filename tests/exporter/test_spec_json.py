"""Specs as plain data."""

import json
from dataclasses import replace

from tests.exporter.checkpoint.folders import BACKBONE, EXITS

from quatrain.exporter.spec import (
    BankTopK,
    DecoderSpec,
    Drafter,
    KVMirror,
    LinearRopeScaling,
    Llama3RopeScaling,
    Streams,
)
from quatrain.exporter.spec_json import describe_spec


def test_dense_spec_is_json_able() -> None:
    described = describe_spec(DecoderSpec(BACKBONE))
    assert json.loads(json.dumps(described)) == described
    assert all(described[axis] is None for axis in ("streams", "feed_forward", "exits", "drafter"))
    assert described["backbone"]["num_key_value_heads"] == 2  # type: ignore[index]


def test_exits_are_nested_with_lists() -> None:
    described = describe_spec(DecoderSpec(BACKBONE, exits=EXITS))
    assert json.loads(json.dumps(described)) == described
    assert described["exits"] == {
        "layers": [1, 2],
        "router": {
            "num_layers": 1,
            "hidden_size": 8,
            "intermediate_size": 6,
            "temperature": 0.5,
        },
        "adapter_size": 10,
        "final_adapter_size": 12,
        "early_head": "lm_head",
    }


def test_streams_and_windows_are_nested_with_lists() -> None:
    streams = Streams(4, (True, False, True), (KVMirror(2, 0),))
    spec = DecoderSpec(replace(BACKBONE, sliding_windows=(None, 8, 4)), streams=streams)
    described = describe_spec(spec)
    assert json.loads(json.dumps(described)) == described
    assert described["backbone"]["sliding_windows"] == [None, 8, 4]  # type: ignore[index]
    assert described["streams"] == {
        "num_streams": 4,
        "intra_stream": [True, False, True],
        "mirrors": [{"target": 2, "source": 0}],
    }


def test_banks_are_nested_with_lists() -> None:
    described = describe_spec(
        DecoderSpec(BACKBONE, feed_forward=BankTopK(8, 2, 5, "hard", None, (1,)))
    )
    assert json.loads(json.dumps(described)) == described
    assert described["feed_forward"] == {
        "bank_size": 8,
        "top_k": 2,
        "predictor_rank": 5,
        "gate_mode": "hard",
        "predictor_activation": None,
        "dense_fallback_layers": [1],
    }


def test_a_drafter_is_nested() -> None:
    described = describe_spec(DecoderSpec(BACKBONE, drafter=Drafter("concat", 20, False)))
    assert json.loads(json.dumps(described)) == described
    assert described["drafter"] == {
        "kind": "concat",
        "inner_size": 20,
        "residual": False,
        "norm_eps": 1e-5,
    }


def test_rope_scaling_tells_its_kind() -> None:
    for scaling, expected in [
        (LinearRopeScaling(2.0), {"rope_type": "linear", "factor": 2.0}),
        (
            Llama3RopeScaling(8.0, 1.0, 4.0, 32),
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
    ]:
        described = describe_spec(DecoderSpec(replace(BACKBONE, rope_scaling=scaling)))
        assert described["backbone"]["rope_scaling"] == expected  # type: ignore[index]
