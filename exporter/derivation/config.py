"""What every derived checkpoint changes in config.json."""

import re
from collections.abc import Mapping

__all__ = ["derive_config"]

# What a transformers class name ends in: LlamaForCausalLM, LlamaModel.
_TASK = re.compile(r"(?:For[A-Z]\w*|Model)$")


def derive_config(config: Mapping[str, object], mark: str) -> dict[str, object]:
    """A copy, in its order, whose classes carry `mark` in their names.

    So no tool that goes by the class takes the result for the decoder that it was made from.
    `auto_map` goes: it names .py files that are not copied.
    """
    derived = dict(config)
    derived.pop("auto_map", None)
    classes = config.get("architectures")
    if isinstance(classes, list):
        derived["architectures"] = [_mark_class(name, mark) for name in classes]
    return derived


def _mark_class(name: object, mark: str) -> object:
    if not isinstance(name, str) or mark in name:
        return name
    task = _TASK.search(name)
    cut = task.start() if task else len(name)
    return f"{name[:cut]}{mark}{name[cut:]}"
