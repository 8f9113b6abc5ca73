"""Which of our operators are built as plugins, and which as the function bodies in the graph.

The rule of `auto`: a plugin wherever its definition takes the node. Its kernels skip work that no
body can leave out: what lies behind a row's live length, weights of channels that were not chosen,
launches and round trips between small operations. The body stands in, and is said to, where there
is no kernel for the node (types, sizes), where Triton is not installed to compile one, or where
none is compiled for the GPU. We have not timed either on a GPU: `off` is there to compare.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from quatrain.exporter.errors import BuildError
from quatrain.plugins.compiler import SHARED_MEMORY, has_triton
from quatrain.plugins.registry import DEFINITIONS

__all__ = ["PluginChoice", "PluginMode", "find_obstacle", "parse_plugins"]

PluginMode = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class PluginChoice:
    """A mode for every operator, and others for some."""

    default: PluginMode = "auto"
    by_operator: Mapping[str, PluginMode] = field(default_factory=dict)

    def get_mode(self, operator: str) -> PluginMode:
        """The mode of an operator."""
        return self.by_operator.get(operator, self.default)


def parse_plugins(texts: Sequence[str]) -> PluginChoice:
    """Read what --plugins takes: MODE for all operators, OPERATOR=MODE for one; the last counts.

    Raises `BuildError` for a mode or an operator that does not exist.
    """
    default: PluginMode = "auto"
    by_operator: dict[str, PluginMode] = {}
    for text in texts:
        operator, _, mode = text.rpartition("=")
        if mode not in get_args(PluginMode) or (operator and operator not in DEFINITIONS):
            raise BuildError(
                f"plugins {text!r}",
                "neither a mode nor an operator's",
                f"give {', '.join(get_args(PluginMode))}, or OPERATOR=MODE with an operator of "
                f"{', '.join(DEFINITIONS)}",
            )
        if operator:
            by_operator[operator] = cast(PluginMode, mode)
        else:
            default = cast(PluginMode, mode)
    return PluginChoice(default, by_operator)


def find_obstacle(sms: Sequence[str], can_parse_plugins: bool) -> str | None:
    """Why no plugin can be built here for these compute capabilities at all; None if some can."""
    if not has_triton():
        return (
            "Triton, which compiles their kernels, is not installed: "
            "pip install 'quatrain[kernels]'"
        )
    unknown = [sm for sm in sms if sm not in SHARED_MEMORY]
    if unknown:
        return f"kernels are not compiled for SM {', '.join(unknown)}"
    if not can_parse_plugins:
        return (
            "tensorrt_rtx was imported before quatrain could load its parser, which would abort "
            "the process at the first plugin"
        )
    return None
