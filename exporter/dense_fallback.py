"""Which layers run all their channels: the checkpoint's choice, or the export's."""

from collections.abc import Sequence
from dataclasses import replace

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.errors import ExportError

__all__ = ["choose_dense_fallback"]


def choose_dense_fallback(checkpoint: Checkpoint, layers: Sequence[int] | None) -> Checkpoint:
    """The checkpoint with a dense fallback in these layers instead of its own; None keeps those.

    Raises:
        ExportError: It has no banks, or no such layer.
    """
    if layers is None:
        return checkpoint
    spec = checkpoint.spec
    asked = f"a dense fallback in layers {', '.join(map(str, layers)) or 'none'} (--dense-fallback)"
    if spec.feed_forward is None:
        raise ExportError(
            asked,
            f"a {spec.family} decoder: without bank_topk in config.json all layers are dense",
            "leave --dense-fallback out, or use a bank-top-k checkpoint",
        )
    depth = spec.backbone.num_hidden_layers
    outside = [layer for layer in layers if not 0 <= layer < depth]
    if outside:
        raise ExportError(
            asked,
            f"layer {outside[0]}, and the decoder has {depth}, counted from 0",
            f"name layers from 0 to {depth - 1}",
        )
    banks = replace(spec.feed_forward, dense_fallback_layers=tuple(sorted(set(layers))))
    return replace(checkpoint, spec=replace(spec, feed_forward=banks))
