"""The time axis of a checkpoint: `hilp` in config.json, and the dynamics it speaks of.

No model of HiLP (arXiv 2608.05806) is public, so names and settings are quatrain's own. Only the
low-level dynamics are of use after training; the rest of the hierarchy is left over.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.listing import shorten
from quatrain.exporter.checkpoint.names import is_lower_dynamics, lower_dynamics_name
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import Drafter

__all__ = ["FoundDrafter", "read_hilp"]

HilpKind = Literal["glu_cross", "concat"]

_SECTION = "hilp"
_KIND = "drafter"
_KINDS: tuple[HilpKind, ...] = get_args(HilpKind)
_UPPER = ("upper_dynamics.", "combined_head.", "swa.")

Tensors = Mapping[str, LazyTensor]


@dataclass(frozen=True, slots=True)
class FoundDrafter:
    """The drafter of a checkpoint; where it has none, `absence` says why."""

    drafter: Drafter | None
    absence: str | None = None


def read_hilp(config: Fields, stored: Tensors, source: str) -> FoundDrafter:
    """Read the time axis of a config.json and the width of its tensors.

    `hilp.drafter` is required where there are dynamics, `residual` true unless it says otherwise.
    All other settings (`window` and whatever a trainer adds) are of training only.

    Raises:
        CheckpointError: A setting that is missing, malformed or unknown, dynamics that
            config.json knows nothing of, or dynamics whose width cannot be read.
    """
    names = sorted(filter(is_lower_dynamics, stored))
    if not config.has(_SECTION):
        _refuse_unannounced(names, config, source)
        return FoundDrafter(None, _explain_absence(stored))
    section = config.section(_SECTION)
    kind = _read_kind(section, required=bool(names))
    residual = section.flag("residual", True)
    if not names:
        return FoundDrafter(None, _explain_absence(stored))
    return FoundDrafter(Drafter(kind, _read_inner_size(stored, names, source), residual))


def _read_kind(section: Fields, *, required: bool) -> HilpKind:
    text = section.text(_KIND, None if required else _KINDS[0])
    for kind in _KINDS:
        if text == kind:
            return kind
    raise section.unknown(_KIND, _KINDS)


def _refuse_unannounced(names: list[str], config: Fields, source: str) -> None:
    if names:
        raise CheckpointError(
            f"no {_SECTION} in {config.source}: a decoder without low-level dynamics",
            f"{len(names)} tensors of them in {source}: {shorten(names)}",
            f'give config.json "{_SECTION}": {{"{_KIND}": {" or ".join(_KINDS)}, "residual": '
            "true or false} as these weights were trained, or remove the dynamics from the weights",
        )


def _read_inner_size(stored: Tensors, names: list[str], source: str) -> int:
    gate = stored.get(lower_dynamics_name("gate"))
    if gate is not None and len(gate.shape) == 2:
        return gate.shape[0]
    raise CheckpointError(
        f"the width of the low-level dynamics in {source}: that of {lower_dynamics_name('gate')}",
        f"only {shorten(names)}" if gate is None else f"a tensor of shape {list(gate.shape)}",
        "make sure that all files of the weights are there; the gate is a matrix of [width, "
        "hidden_size], or [width, 2 * hidden_size] with concat",
    )


def _explain_absence(stored: Tensors) -> str:
    upper = sorted(name for name in stored if name.startswith(_UPPER))
    if not upper:
        return "no lower_dynamics.* in the checkpoint"
    return (
        "no lower_dynamics.* in the checkpoint, only what is of no use after training: "
        f"{shorten(upper, 4)}"
    )
