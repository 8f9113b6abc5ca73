"""What a decoder is: one backbone and the axes that set it apart from a plain one.

The families are independent features of one decoder, so each axis is its own frozen dataclass and
`None` where a model does not have it. Field names are Hugging Face's wherever it has one.
"""

from quatrain.exporter.spec.backbone import (
    Backbone,
    DType,
    LinearRopeScaling,
    Llama3RopeScaling,
    RopeScaling,
)
from quatrain.exporter.spec.decoder import DecoderSpec
from quatrain.exporter.spec.drafter import Drafter, DrafterKind
from quatrain.exporter.spec.exits import Exits, Router
from quatrain.exporter.spec.feed_forward import BankTopK, GateMode, PredictorActivation
from quatrain.exporter.spec.streams import KVMirror, Streams

__all__ = [
    "Backbone",
    "BankTopK",
    "DType",
    "DecoderSpec",
    "Drafter",
    "DrafterKind",
    "Exits",
    "GateMode",
    "KVMirror",
    "LinearRopeScaling",
    "Llama3RopeScaling",
    "PredictorActivation",
    "RopeScaling",
    "Router",
    "Streams",
]
