"""What a checkpoint computes, in plain NumPy: the other side of every comparison.

Nothing here is shared with what exports: only what a checkpoint holds is read with the same code.
"""

from quatrain.exporter.reference.decoder import ReferenceDecoder
from quatrain.exporter.reference.taps import Taps

__all__ = ["ReferenceDecoder", "Taps"]
