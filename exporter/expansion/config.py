"""The config.json of an expanded checkpoint."""

import re
from collections.abc import Mapping

from quatrain.exporter.spec import Streams

__all__ = ["expand_config"]

_SUFFIX = "_scale_seq"
_MARK = "ScaleSeq"
_INTRA_STREAM = "scale_seq_attn_per_suffix_layerwise"
# What a transformers class name ends in: LlamaForCausalLM, LlamaModel.
_TASK = re.compile(r"(?:For[A-Z]\w*|Model)$")


def expand_config(config: Mapping[str, object], streams: Streams) -> dict[str, object]:
    """Change what has to change and keep all else, in its order.

    The model type and the classes get names of their own, so that no tool that knows only the
    plain decoder takes the result for one and leaves the extra tables out. `auto_map` goes:
    it names .py files that are not copied.
    """
    expanded = dict(config)
    expanded.pop("auto_map", None)
    model_type = str(config["model_type"])
    expanded["model_type"] = model_type.removesuffix(_SUFFIX) + _SUFFIX
    classes = config.get("architectures")
    if isinstance(classes, list):
        expanded["architectures"] = [_rename_class(name) for name in classes]
    expanded["scale_seq_times"] = streams.num_streams - 1
    if any(streams.intra_stream):
        expanded[_INTRA_STREAM] = list(streams.intra_stream)
    else:
        expanded.pop(_INTRA_STREAM, None)
    return expanded


def _rename_class(name: object) -> object:
    if not isinstance(name, str) or _MARK in name:
        return name
    task = _TASK.search(name)
    cut = task.start() if task else len(name)
    return f"{name[:cut]}{_MARK}{name[cut:]}"
