"""What all layers of a graph are built with."""

from dataclasses import dataclass

import onnx_ir as ir

from quatrain.exporter.decoder.device import Device
from quatrain.exporter.decoder.joined_projections import Joined
from quatrain.exporter.spec import DecoderSpec

__all__ = ["LayerSetting"]


@dataclass(frozen=True, slots=True)
class LayerSetting:
    """The decoder, the type it computes in, what it is to run on, and the weights that are
    multiplied at once."""

    spec: DecoderSpec
    dtype: ir.DataType
    device: Device
    joined: Joined
