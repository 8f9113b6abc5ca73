"""Decoding strategies: plain, and piggyback for models with exits."""

from quatrain.runtime.decoding.decoder import Decoder, StepOutput
from quatrain.runtime.decoding.factory import make_decoder
from quatrain.runtime.decoding.piggyback import PiggybackDecoder
from quatrain.runtime.decoding.plain import PlainDecoder
from quatrain.runtime.decoding.routing import (
    ArgmaxRouting,
    ForcedRouting,
    Routing,
    SampleRouting,
)
from quatrain.runtime.decoding.scoring import ExitScores, score_exits, score_tokens

__all__ = [
    "ArgmaxRouting",
    "Decoder",
    "ExitScores",
    "ForcedRouting",
    "PiggybackDecoder",
    "PlainDecoder",
    "Routing",
    "SampleRouting",
    "StepOutput",
    "make_decoder",
    "score_exits",
    "score_tokens",
]
