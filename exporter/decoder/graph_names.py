"""What the graphs of a decoder are called, in the order they run."""

from quatrain.exporter.decoder.head_weights import head_names
from quatrain.exporter.spec import DecoderSpec

__all__ = ["DRAFTER", "list_graphs", "list_layered_graphs"]

DRAFTER = "drafter"


def list_graphs(spec: DecoderSpec) -> list[str]:
    """All of them: those with layers, then with exits the heads, a shared one once."""
    heads = [] if spec.exits is None else dict.fromkeys(head_names(spec))
    drafters = [] if spec.drafter is None else [DRAFTER]
    return [*list_layered_graphs(spec), *heads, *drafters]


def list_layered_graphs(spec: DecoderSpec) -> list[str]:
    """The graphs with decoder layers, one for each of `spec.segments`."""
    if spec.exits is None:
        return ["decoder"]
    return [f"segment_{k}" for k in range(spec.exits.num_exits)]
