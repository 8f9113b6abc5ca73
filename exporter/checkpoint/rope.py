"""The rotary embedding settings of a config.json, in their old and new spellings."""

from collections.abc import Mapping
from dataclasses import dataclass

from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import LinearRopeScaling, Llama3RopeScaling, RopeScaling

__all__ = ["Rope", "read_rope"]

_DEFAULT_THETA = 10000.0  # transformers' default for Llama, Qwen2 and Qwen3


@dataclass(frozen=True, slots=True)
class Rope:
    """The base of the rotary frequencies, and how they are scaled."""

    theta: float
    scaling: RopeScaling | None


def read_rope(config: Fields) -> Rope:
    """Read `rope_theta` with `rope_scaling` (transformers 4), or `rope_parameters` (5).

    Where both spellings are there, the order of precedence is that of transformers 5.24
    (modeling_rope_utils.py).

    Raises:
        CheckpointError: A kind of scaling that is not supported, or malformed settings.
    """
    key = next((k for k in ("rope_scaling", "rope_parameters") if config.get(k)), "rope_parameters")
    rope = config.section(key)
    if any(isinstance(rope.get(name), Mapping) for name in _names(config, key)):
        raise _unsupported(config, key, "rotary settings that differ between layer types")
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        name = rope.name("partial_rotary_factor")
        raise _unsupported(config, name, "rotation of a part of each head only")
    theta = rope.positive("rope_theta", config.positive("rope_theta", _DEFAULT_THETA))
    return Rope(theta, _read_scaling(config, rope, key))


def _read_scaling(config: Fields, rope: Fields, key: str) -> RopeScaling | None:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearRopeScaling(rope.positive("factor"))
    if kind == "llama3":
        return _read_llama3(config, rope)
    raise _unsupported(config, key, f"rope_type {kind!r}")


def _read_llama3(config: Fields, rope: Fields) -> Llama3RopeScaling:
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if high <= low:
        raise rope.wrong("high_freq_factor", f"a number above low_freq_factor = {low:g}")
    # transformers takes the length from the top level first, then from the rope settings.
    name = "original_max_position_embeddings"
    inner = rope.integer(name, config.integer("max_position_embeddings", 2048))
    original = config.integer(name, inner)
    if original < 1:
        raise rope.wrong(name, "a length of 1 or more")
    return Llama3RopeScaling(rope.positive("factor"), low, high, original)


def _names(config: Fields, key: str) -> list[str]:
    settings = config.get(key)
    return list(settings) if isinstance(settings, Mapping) else []


def _unsupported(config: Fields, key: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"a decoder with {key} of {config.source}",
        f"{what}, which is not supported",
        "use a checkpoint with plain, linear or llama3 rotary embeddings, "
        "or add the kind in exporter/checkpoint/rope.py",
    )
