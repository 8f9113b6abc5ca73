"""Specs as plain data."""

import json
from dataclasses import replace

from tests.exporter.checkpoint.folders import BACKBONE, EXITS

from quatrain.exporter.spec import DecoderSpec, LinearRopeScaling, Llama3RopeScaling
from quatrain.exporter.spec_json import describe_spec


def test_dense_spec_is_json_able() -> None:
    described = describe_spec(DecoderSpec(BACKBONE))
    assert json.loads(json.dumps(described)) == described
    assert described["exits"] is None
    assert described["backbone"]["num_key_value_heads"] == 2  # type: ignore[index]


def test_exits_are_nested_with_lists() -> None:
    described = describe_spec(DecoderSpec(BACKBONE, EXITS))
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
