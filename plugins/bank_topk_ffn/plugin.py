"""`quatrain::BankTopKFeedForward` as a plugin: which launches for which shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from quatrain.plugins.bank_topk_ffn.few_rows import FewRows, count_few_rows
from quatrain.plugins.bank_topk_ffn.many_rows import ManyRows
from quatrain.plugins.bank_topk_ffn.network import Network, check_types, read_network
from quatrain.plugins.definition import (
    AttributeKind,
    AttributeValue,
    DType,
    OutputFacts,
    TensorFacts,
    UnsupportedError,
)
from quatrain.plugins.launch import KernelVariant, Launch, Work
from quatrain.plugins.operator import OperatorName

__all__ = ["BANK_TOPK_FEED_FORWARD", "BankTopKFeedForwardPlugin"]

BANK_TOPK_FEED_FORWARD = OperatorName("BankTopKFeedForward")

_MAX_BANK_SIZE = 128  # a tile of a bank's channels has to fit in registers
_CHOICES = {
    "gate_mode": ("sigmoid", "hard", "silu"),
    "predictor_activation": ("none", "relu", "silu"),
}


@dataclass(frozen=True, slots=True)
class BankTopKFeedForwardPlugin:
    """Few rows read the weights of their active channels alone, many run tiles of all.

    Inputs as in `reference.py`: x [B, R, d] and weights of one type, float32, float16 or bfloat16;
    the output is like x. Either way takes three launches, and what is added up in which order
    depends on the sizes alone: the same rows give the same bits, on every GPU.
    """

    bank_size: int
    top_k: int
    gate_mode: str = "sigmoid"
    predictor_activation: str = "none"

    operator: ClassVar[OperatorName] = BANK_TOPK_FEED_FORWARD
    folder: ClassVar[str] = "bank_topk_ffn"
    attributes: ClassVar[Mapping[str, tuple[AttributeKind, AttributeValue | None]]] = {
        "bank_size": ("int", None),
        "top_k": ("int", None),
        "gate_mode": ("string", "sigmoid"),
        "predictor_activation": ("string", "none"),
    }
    num_outputs: ClassVar[int] = 1
    output_dtypes: ClassVar[tuple[DType | int, ...]] = (0,)

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.bank_size <= _MAX_BANK_SIZE:
            raise UnsupportedError(
                f"top_k {self.top_k} of banks of {self.bank_size}: the kernels take banks of up to "
                f"{_MAX_BANK_SIZE} channels, and of each 1 or more and not more than it has"
            )
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise UnsupportedError(f"{name} is {value!r}, not one of {', '.join(choices)}")

    def describe_outputs(self, dtypes: Sequence[DType], ranks: Sequence[int]) -> list[OutputFacts]:
        """One output like x."""
        check_types(dtypes, ranks)
        return [OutputFacts(dtypes[0], ((0, 0), (0, 1), (0, 2)))]

    def check(self, inputs: Sequence[TensorFacts]) -> None:
        """All sizes but those of batch and rows are fixed, and go together."""
        self._read_facts(inputs)

    def list_variants(self, inputs: Sequence[TensorFacts]) -> list[KernelVariant]:
        """Those for few rows, and for a tile of each height that the rows may need."""
        network = self._read_facts(inputs)
        max_rows, few = _count_rows(inputs[0].max_shape), self._max_few_rows
        variants = dict.fromkeys(FewRows(network).list_variants())
        if max_rows > few:
            for rows in (few + 1, max_rows):
                variants |= dict.fromkeys(ManyRows(network).list_variants(rows))
        return list(variants)

    def count_workspace_bytes(self, inputs: Sequence[TensorFacts]) -> int:
        """The most that one of both ways needs."""
        network = self._read_facts(inputs)
        max_rows, few = _count_rows(inputs[0].max_shape), self._max_few_rows
        needs = [FewRows(network).count_workspace_bytes(min(max_rows, few))]
        if max_rows > few:
            needs.append(ManyRows(network).count_workspace_bytes(max_rows))
        return max(needs)

    def plan(
        self, dtypes: Sequence[DType], shapes: Sequence[tuple[int, ...]], num_multiprocessors: int
    ) -> list[Launch]:
        """Three launches, whatever the number of multiprocessors; none without rows."""
        network, rows = self._read(dtypes, shapes), _count_rows(shapes[0])
        if rows == 0:
            return []
        return (FewRows if rows <= self._max_few_rows else ManyRows)(network).plan(rows)

    def count_work(self, dtypes: Sequence[DType], shapes: Sequence[tuple[int, ...]]) -> Work:
        """With rows that choose independently, where not all weights are read anyhow."""
        net, rows = self._read(dtypes, shapes), _count_rows(shapes[0])
        share = self.top_k / self.bank_size
        if rows <= self._max_few_rows:
            run, read = rows * share, 1 - (1 - share) ** rows
        else:
            run, read = float(rows), 1.0
        channel, predictor = 3 * net.hidden_size, net.rank * (net.hidden_size + net.channels)
        elements = read * net.channels * channel + predictor + 2 * rows * net.hidden_size
        products = run * net.channels * channel + rows * predictor
        return Work(round(elements * net.item_bytes), round(2 * products))

    @property
    def _max_few_rows(self) -> int:
        return count_few_rows(self.bank_size, self.top_k)

    def _read_facts(self, inputs: Sequence[TensorFacts]) -> Network:
        return self._read([fact.dtype for fact in inputs], [fact.shape for fact in inputs])

    def _read(self, dtypes: Sequence[DType], shapes: Sequence[tuple[int, ...]]) -> Network:
        return read_network(
            dtypes,
            shapes,
            self.bank_size,
            self.top_k,
            self.gate_mode,
            self.predictor_activation,
        )


def _count_rows(shape: tuple[int, ...]) -> int:
    return shape[0] * shape[1]
