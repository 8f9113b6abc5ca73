"""What a bank-top-k feed-forward reads of its weights."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.names import feed_forward_name
from quatrain.exporter.spec import BankTopK, DecoderSpec

__all__ = ["FeedForwardBill", "bill_feed_forward"]


@dataclass(frozen=True, slots=True)
class FeedForwardBill:
    """Bytes of weights in the feed-forward networks of all layers, as they are stored.

    `dense_bytes` are those of the three matrices: what a dense decoder reads in every step.
    `row_bytes` are those that one row needs: its active channels of each matrix, and the whole
    predictor. A step reads so little where active channels are gathered; rows decoded together
    choose each for itself.
    """

    row_bytes: int
    dense_bytes: int


def bill_feed_forward(
    spec: DecoderSpec, tensors: Mapping[str, LazyTensor]
) -> FeedForwardBill | None:
    """Arithmetic on the stored sizes; None where all channels always run."""
    if spec.feed_forward is None:
        return None
    layers = range(spec.backbone.num_hidden_layers)
    return FeedForwardBill(
        row_bytes=sum(_count_row_bytes(spec.feed_forward, layer, tensors) for layer in layers),
        dense_bytes=sum(
            _count_bytes(layer, ("gate_proj", "up_proj", "down_proj"), tensors) for layer in layers
        ),
    )


def _count_row_bytes(banks: BankTopK, layer: int, tensors: Mapping[str, LazyTensor]) -> int:
    inputs = _count_bytes(layer, ("gate_proj", "up_proj"), tensors)
    output = _count_bytes(layer, ("down_proj",), tensors)
    predictor = 0
    if banks.predictor_rank is not None:
        predictor = _count_bytes(layer, ("predictor.0", "predictor.1"), tensors)
    if layer in banks.dense_fallback_layers:
        # All channels run; only the sigmoid gate still asks the predictor.
        return inputs + output + (predictor if banks.gate_mode == "sigmoid" else 0)
    output = output * banks.top_k // banks.bank_size
    if banks.predictor_rank is None:
        return inputs + output  # the choice needs the activations of all channels
    return inputs * banks.top_k // banks.bank_size + output + predictor


def _count_bytes(layer: int, parts: Iterable[str], tensors: Mapping[str, LazyTensor]) -> int:
    return sum(tensors[feed_forward_name(layer, part)].nbytes for part in parts)
