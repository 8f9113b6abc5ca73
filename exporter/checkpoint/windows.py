"""The sliding windows of a config.json: transformers' spelling, and one number for each layer."""

from quatrain.exporter.checkpoint.backbone import ARCHITECTURES
from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import Backbone, Streams

__all__ = ["read_windows"]

_LAYERWISE = "sliding_window_size_layerwise"
_SLIDING = "sliding_attention"

Windows = tuple[int | None, ...]


def read_windows(config: Fields, backbone: Backbone, streams: Streams | None) -> Windows:
    """Read how many keys a query of each layer sees, its own included; () where none slides.

    `sliding_window_size_layerwise` (WeLM's key) goes before transformers' `layer_types` and
    `use_sliding_window`. A window is counted in tokens, and in rows in the cross-stream layers of
    a decoder with streams; one that no sequence can fill is None, as is none at all.

    Raises:
        CheckpointError: A malformed setting, an unknown kind of layer, or windows for another
            number of layers.
    """
    layer_types = _read_layer_types(config, backbone.num_hidden_layers)
    rows = [_rows_of_token(streams, layer) for layer in range(backbone.num_hidden_layers)]
    if config.has(_LAYERWISE):
        windows = _read_layerwise(config, rows)
    else:
        windows = _read_layers_of_one_window(config, backbone, layer_types)
    limit = backbone.max_position_embeddings
    windows = tuple(
        window if window is not None and window < limit * r else None
        for window, r in zip(windows, rows, strict=True)
    )
    return windows if any(windows) else ()


def _rows_of_token(streams: Streams | None, layer: int) -> int:
    """How many of the things a layer attends over there are for each token."""
    if streams is None or any(streams.intra_stream[layer : layer + 1]):
        return 1
    return streams.num_streams


def _read_layer_types(config: Fields, num_hidden_layers: int) -> tuple[str, ...]:
    layer_types = tuple(config.texts("layer_types"))
    other = sorted(set(layer_types) - {"full_attention", _SLIDING})
    if other:
        raise CheckpointError(
            f"full or sliding attention in every layer of {config.source}",
            f"layer_types with {', '.join(other)}, which is not supported",
            "use a checkpoint without such layers",
        )
    if layer_types and len(layer_types) != num_hidden_layers:
        raise _wrong_length(config, "layer_types", len(layer_types), num_hidden_layers)
    return layer_types


def _read_layerwise(config: Fields, rows: list[int]) -> Windows:
    sizes = config.get(_LAYERWISE)
    if not isinstance(sizes, list):
        raise config.wrong(_LAYERWISE, "a list of windows, one for each layer")
    if len(sizes) != len(rows):
        raise _wrong_length(config, _LAYERWISE, len(sizes), len(rows))
    for layer, (size, rows_of_token) in enumerate(zip(sizes, rows, strict=True)):
        if type(size) is not int or size < -1:
            unit = "tokens" if rows_of_token == 1 else f"rows, {rows_of_token} for each token"
            raise CheckpointError(
                f"{_LAYERWISE} in {config.source}: for layer {layer} a whole number of {unit}",
                repr(size)[:80],
                f"correct {_LAYERWISE} in {config.source} (-1: no window)",
            )
    return tuple(size if size > 0 else None for size in sizes)


def _read_layers_of_one_window(
    config: Fields, backbone: Backbone, layer_types: tuple[str, ...]
) -> Windows:
    """The rule of Qwen2Config and Qwen3Config in transformers 5.24, and its defaults."""
    layers = backbone.num_hidden_layers
    if not ARCHITECTURES[backbone.model_type].has_sliding_window:
        if _SLIDING in layer_types:
            raise _ambiguous(config, f"transformers ignores it in a {backbone.model_type} decoder")
        return (None,) * layers
    window = _read_window(config)
    if not layer_types:
        first = layers if window is None else config.integer("max_window_layers", 28)
        return tuple(window if layer >= first else None for layer in range(layers))
    if window is None and _SLIDING in layer_types:
        raise _ambiguous(config, "use_sliding_window is not true, or sliding_window is null")
    return tuple(window if kind == _SLIDING else None for kind in layer_types)


def _read_window(config: Fields) -> int | None:
    if not config.flag("use_sliding_window", False):
        return None
    if config.has_key("sliding_window") and not config.has("sliding_window"):
        return None
    window = config.integer("sliding_window", 4096)
    if window < 1:
        raise config.wrong("sliding_window", "a number of keys, 1 or more, or null")
    return window


def _ambiguous(config: Fields, found: str) -> CheckpointError:
    return CheckpointError(
        f"layer_types with {_SLIDING} in {config.source}",
        f"{found}; loaders disagree on what such a checkpoint means",
        f"give each layer's window in {_LAYERWISE} (-1: none), or correct these settings",
    )


def _wrong_length(config: Fields, key: str, found: int, layers: int) -> CheckpointError:
    return CheckpointError(
        f"{key} in {config.source}: one entry for each of {layers} layers",
        f"a list of {found}",
        f"correct {key} or num_hidden_layers in {config.source}",
    )
