"""Whether a checkpoint holds exactly what its decoder needs."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from quatrain.exporter.checkpoint.lazy_tensor import SUPPORTED_DTYPES, LazyTensor
from quatrain.exporter.checkpoint.listing import shorten
from quatrain.exporter.checkpoint.names import (
    EMBEDDINGS,
    LM_HEAD,
    early_head_name,
    expected_tensors,
    is_dynamics,
    is_predictor,
)
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import DecoderSpec

__all__ = ["IncompleteCheckpointError", "MatchedTensors", "check_layer_count", "match_tensors"]

# Buffers, training state and training-only modules that some trainers leave among the weights;
# nothing is computed from them at inference.
_LEFTOVERS = re.compile(
    r".*\.rotary_emb\.(inv_freq|original_inv_freq|cos_cached|sin_cached)"
    r"|.*\.attn\.(bias|masked_bias)|.*\.self_attn\.masked_bias"
    r"|(optimizer|optimizer_state|lr_scheduler|lr_scheduler_state|grad_scaler)\..*"
    r"|(.*\.)?(global_step|training_steps|num_batches_tracked|total_ops|total_params)"
    r"|(swa|upper_dynamics|combined_head)\..*"  # what HiLP trains with
)

Tensors = Mapping[str, LazyTensor]


class IncompleteCheckpointError(CheckpointError):
    """Tensors are missing, left over or of the wrong shape; the attributes have the full lists."""

    def __init__(
        self,
        asked: str,
        missing: list[str],
        unexpected: list[str],
        misshapen: list[str],
        hint: str = "",
        settings: str = "config.json",
    ) -> None:
        self.missing = missing
        self.unexpected = unexpected
        self.misshapen = misshapen
        lists = {"missing": missing, "unexpected": unexpected, "of another shape": misshapen}
        found = "; ".join(
            f"{len(names)} {what}: {shorten(names)}" for what, names in lists.items() if names
        )
        fix = f"check that {settings} belongs to these weights, and that all of them are there"
        super().__init__(asked, found, fix + hint)


@dataclass(frozen=True, slots=True)
class MatchedTensors:
    """The tensors of a decoder by name, and the names in the files that are of no use."""

    tensors: Tensors
    leftovers: tuple[str, ...]


def check_layer_count(
    layers: int, stored: Tensors, source: str, setting: str = "num_hidden_layers in config.json"
) -> None:
    """Refuse a wrong number of layers before anything is made up for each of them.

    Raises:
        CheckpointError: There are fewer tensors than layers.
    """
    if layers > len(stored):
        raise CheckpointError(
            f"a decoder of {layers} layers in {source}",
            f"only {len(stored)} tensors in the weights",
            f"make sure that all files of the weights are there, or correct {setting}",
        )


def match_tensors(
    spec: DecoderSpec, stored: Tensors, source: str, settings: str = "config.json"
) -> MatchedTensors:
    """Pair every tensor the decoder needs with a stored one, and account for all others.

    A duplicate of a tied tensor is left over, provided that it holds the same numbers. `settings`
    is the file that an error asks to be checked.

    Raises:
        IncompleteCheckpointError: Something is missing, unexpected or of another shape.
        CheckpointError: A weight is stored in an unsupported dtype, or is tied to different ones.
    """
    expected = expected_tensors(spec)
    present = _rename_tied_embeddings(spec, stored)
    _check_dtypes(expected, present, source)
    ties = dict(_list_ties(spec))
    missing = [name for name in expected if name not in present]
    misshapen = [
        f"{name} {list(present[name].shape)} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in present and present[name].shape != shape
    ]
    extra = sorted(present.keys() - expected.keys())
    unexpected = [name for name in extra if name not in ties and not _LEFTOVERS.fullmatch(name)]
    if missing or unexpected or misshapen:
        raise IncompleteCheckpointError(
            f"the {len(expected)} tensors of a {spec.family} {spec.backbone.model_type} decoder "
            f"in {source}",
            missing,
            unexpected,
            misshapen,
            _explain(spec, [*missing, *unexpected, *misshapen]),
            settings,
        )
    for name in sorted(ties.keys() & present.keys()):
        _check_tie(present[name], present[ties[name]], source)
    return MatchedTensors(
        {name: present[name] for name in expected},
        tuple(present[name].stored_name for name in extra),
    )


def _rename_tied_embeddings(spec: DecoderSpec, stored: Tensors) -> Tensors:
    # A tied table is stored once, and some writers kept it under the head's name.
    if not spec.backbone.tie_word_embeddings or EMBEDDINGS in stored or LM_HEAD not in stored:
        return stored
    others = {name: tensor for name, tensor in stored.items() if name != LM_HEAD}
    return others | {EMBEDDINGS: replace(stored[LM_HEAD], name=EMBEDDINGS)}


def _explain(spec: DecoderSpec, wrong: list[str]) -> str:
    """Where the shapes of predictors and dynamics come from, if any of the wrong ones is such."""
    names = [name.split(" ")[0] for name in wrong]
    text = ""
    if spec.feed_forward is not None and any(map(is_predictor, names)):
        text += (
            f"; with bank_topk.predictor_rank = {spec.feed_forward.predictor_rank} in config.json"
            " every layer has a predictor of that rank, without biases"
        )
    if spec.drafter is not None and any(map(is_dynamics, names)):
        text += (
            f"; the dynamics are of the kind {spec.drafter.kind}, without biases, and of width "
            f"{spec.drafter.inner_size}, which is that of their first matrix"
        )
    return text


def _list_ties(spec: DecoderSpec) -> Iterator[tuple[str, str]]:
    """Each tensor that is another one under a second name, with the name of its source."""
    head = EMBEDDINGS if spec.backbone.tie_word_embeddings else LM_HEAD
    if head == EMBEDDINGS:
        yield LM_HEAD, EMBEDDINGS
    if spec.exits is not None and spec.exits.early_head != "own":
        source = EMBEDDINGS if spec.exits.early_head == "embeddings" else head
        for k in range(len(spec.exits.layers)):
            yield early_head_name(k), source


def _check_dtypes(expected: Mapping[str, object], present: Tensors, source: str) -> None:
    wrong = [
        f"{name} ({present[name].dtype})"
        for name in expected
        if name in present and present[name].dtype not in SUPPORTED_DTYPES
    ]
    if wrong:
        raise CheckpointError(
            f"weights stored as {', '.join(SUPPORTED_DTYPES)} in {source}",
            f"{len(wrong)} others: {shorten(wrong)}",
            "use the unquantized checkpoint, or convert these tensors",
        )


def _check_tie(duplicate: LazyTensor, original: LazyTensor, source: str) -> None:
    """Compare rows from all over the table: heads that were trained apart differ in all of them."""
    if duplicate.shape == original.shape and duplicate.dtype in SUPPORTED_DTYPES:
        rows = np.unique(np.linspace(0, original.shape[0] - 1, 64).astype(np.int64))
        values = [np.asarray(t.read()[rows], np.float32) for t in (duplicate, original)]
        if np.array_equal(values[0], values[1], equal_nan=True):
            return
    raise CheckpointError(
        f"{duplicate.stored_name} tied to {original.stored_name} in {source}",
        "both are stored, and they differ; loaders disagree on what such a checkpoint means",
        "untie them in the settings (config.json: tie_word_embeddings; N-vium: tying) if the head "
        f"was trained apart, else remove {duplicate.stored_name} from the weights",
    )
