"""Which weights get how few bits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.names import EMBEDDINGS, feed_forward_name
from quatrain.exporter.decoder.head_weights import head_weights
from quatrain.exporter.errors import ExportError
from quatrain.exporter.spec import DecoderSpec

__all__ = ["GROUP_SIZES", "Scheme", "WeightKind", "choose_widths"]

WeightKind = Literal["int8", "int4"]
GROUP_SIZES = (32, 128)
_BITS: dict[WeightKind, int] = {"int8": 8, "int4": 4}


@dataclass(frozen=True, slots=True)
class Scheme:
    """Signed symmetric codes: groups of `group_size` weights that meet in one product share a
    scale."""

    kind: WeightKind
    group_size: int = 32

    def __post_init__(self) -> None:
        """Refuse what no backend runs."""
        if self.kind not in _BITS:
            raise ExportError(
                f"weights of type {self.kind} (--quantize)",
                "GPUs of compute capability 8.0 and 8.6 multiply with int8 and int4 weights, and"
                " have no hardware for 8- or 4-bit floats",
                f"choose one of {', '.join(_BITS)}",
            )
        if self.group_size not in GROUP_SIZES:
            raise ExportError(
                f"groups of {self.group_size} weights (--group-size)",
                "TensorRT and ONNX Runtime have kernels for some sizes only",
                f"choose one of {', '.join(map(str, GROUP_SIZES))}",
            )

    @property
    def bits(self) -> int:
        """Of a weight in a layer."""
        return _BITS[self.kind]


def choose_widths(
    spec: DecoderSpec, tensors: Mapping[str, LazyTensor], scheme: Scheme
) -> dict[str, int]:
    """Bits of each weight that becomes codes, by name.

    Those are the projections of attention and of feed-forward networks, and with 4 bits the heads,
    in 8. As they are stay what little can be saved on or much can go wrong with: embeddings,
    norms, routers, adapters, predictors and dynamics; feed-forward networks behind a predictor,
    whose operator gathers rows; and matrices that groups do not divide.
    """
    names = dict.fromkeys(_list_projections(spec), scheme.bits)
    if scheme.bits < 8:
        names |= dict.fromkeys(_list_heads(spec), 8)
    return {
        name: bits
        for name, bits in names.items()
        if tensors[name].shape[1] % scheme.group_size == 0 and tensors[name].shape[0] % 2 == 0
    }


def _list_heads(spec: DecoderSpec) -> list[str]:
    """Of a model with exits only those that are nothing but heads."""
    heads = head_weights(spec)
    return heads if spec.exits is None else [name for name in heads if name != EMBEDDINGS]


def _list_projections(spec: DecoderSpec) -> list[str]:
    banks = spec.feed_forward
    has_operator = banks is not None and banks.predictor_rank is not None
    names = []
    for layer in range(spec.backbone.num_hidden_layers):
        attention = f"model.layers.{layer}.self_attn"
        names += [f"{attention}.{part}_proj.weight" for part in ("q", "k", "v", "o")]
        if not has_operator:
            parts = ("gate_proj", "up_proj", "down_proj")
            names += [feed_forward_name(layer, part) for part in parts]
    return names
