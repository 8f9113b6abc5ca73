"""The config.json of an expanded checkpoint."""

from collections.abc import Mapping

from quatrain.exporter.derivation import derive_config
from quatrain.exporter.spec import Streams

__all__ = ["expand_config"]

_SUFFIX = "_scale_seq"
_MARK = "ScaleSeq"
_INTRA_STREAM = "scale_seq_attn_per_suffix_layerwise"


def expand_config(config: Mapping[str, object], streams: Streams) -> dict[str, object]:
    """Change what has to change and keep all else, in its order.

    The model type and the classes get names of their own, so that no tool that knows only the
    plain decoder takes the result for one and leaves the extra tables out.
    """
    expanded = derive_config(config, _MARK)
    model_type = str(config["model_type"])
    expanded["model_type"] = model_type.removesuffix(_SUFFIX) + _SUFFIX
    expanded["scale_seq_times"] = streams.num_streams - 1
    if any(streams.intra_stream):
        expanded[_INTRA_STREAM] = list(streams.intra_stream)
    else:
        expanded.pop(_INTRA_STREAM, None)
    return expanded
