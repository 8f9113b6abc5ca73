"""What banks save of the bytes of a feed-forward."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.exporter.checkpoint.folders import BACKBONE

from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.names import expected_tensors
from quatrain.exporter.feed_forward_bill import FeedForwardBill, bill_feed_forward
from quatrain.exporter.spec import BankTopK, DecoderSpec

# The paper's sizes: 14336 channels, 16 of 64 active, predictors of rank 448 (hidden size assumed).
PAPER = replace(BACKBONE, hidden_size=4096, intermediate_size=14_336)
MATRIX = 14_336 * 4096 * 2
PREDICTOR = 448 * (4096 + 14_336) * 2


def bill(banks: BankTopK | None) -> FeedForwardBill | None:
    spec = DecoderSpec(PAPER, feed_forward=banks)
    tensors = {}
    for name, shape in expected_tensors(spec).items():
        tensor = LazyTensor(name, Path("none.safetensors"), "BF16", shape, 0, 0, name)
        tensors[name] = replace(tensor, nbytes=2 * tensor.size)
    return bill_feed_forward(spec, tensors)


def test_a_dense_decoder_has_no_bill() -> None:
    assert bill(None) is None


@pytest.mark.parametrize(
    ("banks", "row_bytes"),
    [
        (BankTopK(64, 16, 448), 3 * (3 * MATRIX // 4 + PREDICTOR)),
        (BankTopK(64, 64, 448), 3 * (3 * MATRIX + PREDICTOR)),
        # Without a predictor only the last product is spared.
        (BankTopK(64, 16, None, "silu"), 3 * (2 * MATRIX + MATRIX // 4)),
        # A dense layer asks its predictor only for a gate of its logits.
        (
            BankTopK(64, 16, 448, "sigmoid", None, (1,)),
            2 * (3 * MATRIX // 4 + PREDICTOR) + 3 * MATRIX + PREDICTOR,
        ),
        (
            BankTopK(64, 16, 448, "hard", None, (1,)),
            2 * (3 * MATRIX // 4 + PREDICTOR) + 3 * MATRIX,
        ),
        (BankTopK(64, 16, None, "silu", None, (0, 1, 2)), 3 * 3 * MATRIX),
    ],
)
def test_a_row_reads_its_channels_and_the_predictor(banks: BankTopK, row_bytes: int) -> None:
    assert bill(banks) == FeedForwardBill(row_bytes, 3 * 3 * MATRIX)
