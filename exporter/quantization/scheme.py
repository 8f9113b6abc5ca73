"""Which weights get how few bits, and which of them lie side by side."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.names import EMBEDDINGS
from quatrain.exporter.decoder.head_weights import head_weights
from quatrain.exporter.decoder.joined_projections import list_projections
from quatrain.exporter.errors import ExportError
from quatrain.exporter.spec import DecoderSpec

__all__ = ["GROUP_SIZES", "HEAD_BITS", "Operand", "Scheme", "WeightKind", "choose_operands"]

WeightKind = Literal["int8", "int4"]
GROUP_SIZES = (32, 128)
HEAD_BITS = (4, 8, 16)
_BITS: dict[WeightKind, int] = {"int8": 8, "int4": 4}


@dataclass(frozen=True, slots=True)
class Scheme:
    """Signed symmetric codes: groups of `group_size` weights that meet in one product share a
    scale. Weights of heads get `head_bits`, with 16 they stay as they are; None is twice the bits
    of the others."""

    kind: WeightKind
    group_size: int = 32
    head_bits: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no backend runs."""
        if self.kind not in _BITS:
            raise ExportError(
                f"weights of type {self.kind} (--quantize)",
                "GPUs of compute capability 8.0 and 8.6 multiply with int8 and int4 weights, and"
                " have no hardware for 8- or 4-bit floats",
                f"choose one of {', '.join(_BITS)}",
            )
        _refuse_other(self.group_size, GROUP_SIZES, "groups of {} weights (--group-size)")
        _refuse_other(self.bits_of_heads, HEAD_BITS, "{} bits for a head's weight (--head-bits)")

    @property
    def bits(self) -> int:
        """Of a weight in a layer."""
        return _BITS[self.kind]

    @property
    def bits_of_heads(self) -> int:
        """Of a weight that makes logits."""
        return 2 * self.bits if self.head_bits is None else self.head_bits


@dataclass(frozen=True, slots=True)
class Operand:
    """Weights [out, in] that are one operand [in, out + out + ...] of products, in codes of `bits`
    bits."""

    names: tuple[str, ...]
    bits: int

    @property
    def name(self) -> str:
        """That of the weight, or what those of several have in common around their own parts."""
        if len(self.names) == 1:
            return self.names[0]
        parts = [name.split(".") for name in self.names]
        merged = (dict.fromkeys(column) for column in zip(*parts, strict=True))
        return ".".join("+".join(column) for column in merged)


def choose_operands(
    spec: DecoderSpec, tensors: Mapping[str, LazyTensor], scheme: Scheme
) -> list[Operand]:
    """All weights that become codes.

    Those are the projections of attention and of feed-forward networks, and the heads. As they are
    stay what little can be saved on or much can go wrong with: embeddings, norms, routers,
    adapters, predictors and dynamics; feed-forward networks behind a predictor, whose operator
    gathers rows; and matrices that groups do not divide.
    """
    operands = [Operand(names, scheme.bits) for names in list_projections(spec)]
    if scheme.bits_of_heads < 16:
        operands += [Operand((name,), scheme.bits_of_heads) for name in _list_heads(spec)]
    return [operand for operand in operands if _is_divided(operand, tensors, scheme)]


def _refuse_other(value: int, choices: Iterable[int], what: str) -> None:
    if value not in choices:
        raise ExportError(
            what.format(value),
            "TensorRT and ONNX Runtime have kernels for some sizes only",
            f"choose one of {', '.join(map(str, choices))}",
        )


def _is_divided(operand: Operand, tensors: Mapping[str, LazyTensor], scheme: Scheme) -> bool:
    shapes = [tensors[name].shape for name in operand.names]
    return all(rows % 2 == 0 and columns % scheme.group_size == 0 for rows, columns in shapes)


def _list_heads(spec: DecoderSpec) -> list[str]:
    """Of a model with exits only those that are nothing but heads."""
    heads = list(dict.fromkeys(head_weights(spec)))
    return heads if spec.exits is None else [name for name in heads if name != EMBEDDINGS]
