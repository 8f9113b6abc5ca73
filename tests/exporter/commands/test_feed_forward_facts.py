"""Banks, as they are told."""

import pytest

from quatrain.exporter.commands.feed_forward_facts import describe_feed_forward
from quatrain.exporter.feed_forward_bill import FeedForwardBill

BANKS = {
    "bank_size": 64,
    "top_k": 16,
    "predictor_rank": 24,
    "gate_mode": "sigmoid",
    "predictor_activation": None,
    "dense_fallback_layers": [6],
}


@pytest.mark.parametrize("banks", [None, [], "banks"])
def test_a_decoder_without_banks_has_no_facts(banks: object) -> None:
    assert describe_feed_forward(banks) == {}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "16 of 64 channels, predictor rank 24, sigmoid gate, dense in layers 6"),
        (
            {"predictor_activation": "relu", "dense_fallback_layers": []},
            "16 of 64 channels, predictor rank 24 (relu), sigmoid gate, dense in no layer",
        ),
        (
            {"predictor_rank": None, "gate_mode": "silu", "dense_fallback_layers": [0, 6]},
            "16 of 64 channels, no predictor, silu gate, dense in layers 0, 6",
        ),
    ],
)
def test_banks_are_told(changes: dict[str, object], text: str) -> None:
    assert describe_feed_forward(BANKS | changes) == {"feed-forward": text}


def test_their_bill_is_told_with_them() -> None:
    told = describe_feed_forward(BANKS, FeedForwardBill(417_000_000, 1_000_000_000))
    assert told["FFN weights"] == (
        "417.0 MB of 1.0 GB in a decode step of one row (41.7%), if active channels are gathered"
    )
