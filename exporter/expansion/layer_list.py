"""A choice of layers, as a user writes it: `none`, `all`, or `0-3,5,7-9`."""

import re

from quatrain.exporter.errors import ExportError

__all__ = ["format_layers", "parse_layers"]

_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def parse_layers(
    text: str, num_hidden_layers: int, *, flag: str = "--intra-stream"
) -> tuple[bool, ...]:
    """Whether each layer is chosen; layers are counted from 0, ranges include both ends.

    Errors name `flag` as what the text was given to.

    Raises:
        ExportError: It is no such list, or names a layer that the decoder does not have.
    """
    text = text.strip()
    if text in ("none", "all"):
        return (text == "all",) * num_hidden_layers
    chosen: set[int] = set()
    for part in text.split(","):
        chosen.update(_parse_part(part.strip(), f"{flag} {text}", num_hidden_layers))
    return tuple(layer in chosen for layer in range(num_hidden_layers))


def format_layers(chosen: tuple[bool, ...]) -> str:
    """The shortest text that `parse_layers` reads as this choice."""
    if not any(chosen):
        return "none"
    if all(chosen):
        return "all"
    parts: list[list[int]] = []
    for layer in (layer for layer, is_chosen in enumerate(chosen) if is_chosen):
        if parts and parts[-1][1] == layer - 1:
            parts[-1][1] = layer
        else:
            parts.append([layer, layer])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _parse_part(part: str, asked: str, num_hidden_layers: int) -> range:
    match = _PART.fullmatch(part)
    if match is None:
        raise ExportError(
            asked,
            f"{part!r} is neither a layer nor a range of layers",
            "give `none`, `all`, or layers counted from 0, such as 0-3,5,7-9",
        )
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        raise ExportError(
            asked,
            f"the range {part} ends before it begins",
            f"write it as {last}-{first}",
        )
    if last >= num_hidden_layers:
        raise ExportError(
            asked,
            f"layer {last}, and the decoder has {num_hidden_layers}, counted from 0",
            f"name layers from 0 to {num_hidden_layers - 1}",
        )
    return range(first, last + 1)
