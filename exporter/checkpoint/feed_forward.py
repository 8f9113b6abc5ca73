"""The width axis of a checkpoint: `bank_topk` in config.json, and the predictors it speaks of."""

from collections.abc import Mapping
from typing import get_args

from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.listing import shorten
from quatrain.exporter.checkpoint.names import is_predictor
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import BankTopK, DecoderSpec, GateMode, PredictorActivation

__all__ = ["check_predictors", "read_bank_top_k"]

_SECTION = "bank_topk"
_RANK = "predictor_rank"
_ACTIVATION = "predictor_activation"
_KEYS = ("bank_size", "top_k", _RANK, "gate_mode", _ACTIVATION, "dense_fallback_layers")


def read_bank_top_k(config: Fields) -> BankTopK | None:
    """Read the width axis of a config.json; None where it has no `bank_topk`.

    No model of this kind is public, so the format is quatrain's own. `bank_size`, `top_k` and
    `predictor_rank` must be there; a rank of null says that there is no predictor, and that the
    channels are chosen by their activation. The gate is by default the predictor's (`sigmoid`),
    without one the backbone's (`silu`).

    Raises:
        CheckpointError: A setting that is missing, malformed or unknown.
    """
    if not config.has(_SECTION):
        return None
    section = config.section(_SECTION)
    _refuse_unknown_keys(section)
    rank = _read_rank(section)
    return BankTopK(
        bank_size=section.integer("bank_size"),
        top_k=section.integer("top_k"),
        predictor_rank=rank,
        gate_mode=_read_gate_mode(section, rank),
        predictor_activation=_read_activation(section, rank),
        dense_fallback_layers=tuple(sorted(section.integers("dense_fallback_layers"))),
    )


def check_predictors(
    spec: DecoderSpec, config: Fields, stored: Mapping[str, LazyTensor], source: str
) -> None:
    """Refuse predictors that config.json knows nothing of: they would be left out of the numbers.

    Raises:
        CheckpointError: The weights have predictors, and the decoder of `spec` has none.
    """
    banks = spec.feed_forward
    names = sorted(filter(is_predictor, stored))
    if not names or (banks is not None and banks.predictor_rank is not None):
        return
    said = f"no {_SECTION}" if banks is None else f"{_SECTION}.{_RANK} = null"
    raise CheckpointError(
        f"{said} in {config.source}: a feed-forward without predictors",
        f"{len(names)} tensors of predictors in {source}: {shorten(names)}",
        f"give {_SECTION} in config.json the {', '.join(_KEYS[:3])} and gate_mode that these"
        " weights were trained with, or remove the predictors from the weights",
    )


def _refuse_unknown_keys(section: Fields) -> None:
    unknown = [section.name(key) for key in section.list_others(_KEYS)]
    if unknown:
        raise CheckpointError(
            f"the settings {_SECTION} of {section.source}",
            f"what quatrain does not know: {shorten(unknown)}",
            f"correct the spelling (known: {', '.join(_KEYS)}); a setting of another meaning is"
            " not supported, and reading on would give wrong numbers silently",
        )


def _read_rank(section: Fields) -> int | None:
    if not section.has_key(_RANK):
        raise section.wrong(_RANK, "an integer, or null for a model without predictors")
    return section.integer(_RANK) if section.has(_RANK) else None


def _read_gate_mode(section: Fields, rank: int | None) -> GateMode:
    text = section.text("gate_mode", "silu" if rank is None else "sigmoid")
    modes: tuple[GateMode, ...] = get_args(GateMode)
    for mode in modes:
        if text == mode:
            return mode
    raise section.unknown("gate_mode", modes)


def _read_activation(section: Fields, rank: int | None) -> PredictorActivation | None:
    if not section.has(_ACTIVATION):
        return None
    if rank is None:
        raise section.wrong(_ACTIVATION, f"null, as {section.name(_RANK)} is null")
    activations: tuple[PredictorActivation, ...] = get_args(PredictorActivation)
    for activation in activations:
        if section.get(_ACTIVATION) == activation:
            return activation
    raise section.unknown(_ACTIVATION, ("null", *activations))
