"""Chooses the decoder that a model needs."""

from collections.abc import Sequence

from quatrain.runtime.decoding.decoder import Decoder
from quatrain.runtime.decoding.piggyback import PiggybackDecoder
from quatrain.runtime.decoding.plain import PlainDecoder
from quatrain.runtime.decoding.routing import Routing
from quatrain.runtime.decoding.speculative import SpeculativeDecoder
from quatrain.runtime.session import Model

__all__ = ["make_decoder"]


def make_decoder(
    model: Model,
    batch_size: int,
    routing: Sequence[Routing] = (),
    max_deferred: int | None = None,
) -> Decoder:
    """A decoder over a cache of its own.

    Args:
        routing: One per batch row; a model without exits has no use for it.
        max_deferred: See `PiggybackDecoder`.
    """
    if model.manifest.drafter is not None:
        return SpeculativeDecoder(model, batch_size)
    if model.manifest.exits is None:
        return PlainDecoder(model, batch_size)
    return PiggybackDecoder(model, batch_size, routing, max_deferred)
