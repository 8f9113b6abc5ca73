"""A `DecoderSpec` as plain data, for manifests and reports."""

from dataclasses import asdict

from quatrain.exporter.spec import BankTopK, DecoderSpec, LinearRopeScaling, RopeScaling, Streams

__all__ = ["describe_spec"]


def describe_spec(spec: DecoderSpec) -> dict[str, object]:
    """Turn a spec into JSON-able data: axes a decoder lacks are None.

    Rotary scaling carries transformers' `rope_type`, by which its kind can be told.
    """
    backbone: dict[str, object] = asdict(spec.backbone)
    backbone["sliding_windows"] = list(spec.backbone.sliding_windows)
    if spec.backbone.rope_scaling is not None:
        backbone["rope_scaling"] = _describe_rope_scaling(spec.backbone.rope_scaling)
    exits: dict[str, object] | None = None
    if spec.exits is not None:
        exits = asdict(spec.exits) | {"layers": list(spec.exits.layers)}
    return {
        "backbone": backbone,
        "streams": _describe_streams(spec.streams),
        "feed_forward": _describe_feed_forward(spec.feed_forward),
        "exits": exits,
        "drafter": None if spec.drafter is None else asdict(spec.drafter),
    }


def _describe_streams(streams: Streams | None) -> dict[str, object] | None:
    if streams is None:
        return None
    return {
        "num_streams": streams.num_streams,
        "intra_stream": list(streams.intra_stream),
        "mirrors": [asdict(mirror) for mirror in streams.mirrors],
    }


def _describe_feed_forward(banks: BankTopK | None) -> dict[str, object] | None:
    if banks is None:
        return None
    return asdict(banks) | {"dense_fallback_layers": list(banks.dense_fallback_layers)}


def _describe_rope_scaling(scaling: RopeScaling) -> dict[str, object]:
    rope_type = "linear" if isinstance(scaling, LinearRopeScaling) else "llama3"
    return {"rope_type": rope_type, **asdict(scaling)}
