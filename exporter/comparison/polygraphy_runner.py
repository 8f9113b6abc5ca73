"""A comparison in Polygraphy's own terms: runners for its Comparator, and a function to compare by.

    from polygraphy.comparator import Comparator

    runners = [ReferenceRunner(checkpoint), BundleRunner(bundle)]
    feeds = [{"token_ids": ids, "lengths": lengths}]
    results = Comparator.run(runners, data_loader=feeds)
    assert Comparator.compare_accuracy(results, compare_func=TableCompareFunc("float32"))

A feed has `token_ids` int64 [B, L] and `lengths` int64 [B]. What comes out are float32 arrays by
the reference's names; what stands behind the end of a sequence is zero.
"""

import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata
from polygraphy.comparator import BaseCompareFunc, IterationResult

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.comparison.cases import Case
from quatrain.exporter.comparison.distance import find_tolerance, measure
from quatrain.exporter.comparison.execution import run_case
from quatrain.exporter.comparison.runners import find_runner
from quatrain.exporter.comparison.tolerances import TOLERANCES, find_kind
from quatrain.exporter.comparison.trace import Trace, list_tokens, match_shapes, split_tokens
from quatrain.exporter.reference import ReferenceDecoder
from quatrain.runtime.manifest import load_manifest
from quatrain.runtime.session import Model

__all__ = ["BundleRunner", "ReferenceRunner", "TableCompareFunc"]

Feed = dict[str, NDArray[np.int64]]


class _SequenceRunner(BaseRunner, ABC):
    """Runs whole sequences."""

    def get_input_metadata_impl(self) -> TensorMetadata:
        metadata = TensorMetadata()
        for name, rank in (("token_ids", 2), ("lengths", 1)):
            metadata.add(name, np.int64, (-1,) * rank)  # type: ignore[no-untyped-call]
        return metadata

    def infer_impl(self, feed_dict: Feed) -> "OrderedDict[str, NDArray[Any]]":
        start = time.perf_counter()
        tokens, lengths = feed_dict["token_ids"], feed_dict["lengths"]
        trace = self._run_tokens(tokens, lengths.tolist())
        self.inference_time = time.perf_counter() - start
        outputs = OrderedDict()
        for name, array in trace.items():
            valid = list_tokens(name, lengths.tolist(), array.shape[1])
            mask = valid.reshape(*valid.shape, *[1] * (array.ndim - 2))
            outputs[name] = np.ascontiguousarray(np.where(mask, array, 0), np.float32)
        return outputs

    @abstractmethod
    def _run_tokens(self, tokens: NDArray[np.int64], lengths: list[int]) -> Trace:
        """Everything that is compared, token by token."""


class ReferenceRunner(_SequenceRunner):
    """A checkpoint, by `ReferenceDecoder`."""

    def __init__(self, checkpoint: Path, name: str | None = None) -> None:
        super().__init__(name, "quatrain-reference")  # type: ignore[no-untyped-call]
        self._decoder = ReferenceDecoder(open_checkpoint(checkpoint))

    def _run_tokens(self, tokens: NDArray[np.int64], lengths: list[int]) -> Trace:
        return split_tokens(self._decoder.run(tokens, lengths), tokens.shape[1])


class BundleRunner(_SequenceRunner):
    """A bundle, by one of `compare_bundle`'s runners: prompts in calls of at most `chunk` tokens
    (default: as many as it allows), and the last `decode_steps` of each sequence one by one."""

    def __init__(
        self,
        bundle: Path,
        runner: str = "fp32",
        *,
        chunk: int | None = None,
        decode_steps: int = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(name, f"quatrain-{runner}")  # type: ignore[no-untyped-call]
        self._bundle = Path(bundle)
        self._runner = find_runner(runner)
        self._chunk = chunk
        self._decode_steps = decode_steps
        self._stack = ExitStack()
        self._model: Model | None = None

    def activate_impl(self) -> None:
        manifest = load_manifest(self._bundle)
        folder = self._stack.enter_context(self._runner.prepare(self._bundle, manifest, False))
        self._model = self._stack.enter_context(self._runner.open(folder))

    def deactivate_impl(self) -> None:
        self._model = None
        self._stack.close()

    def _run_tokens(self, tokens: NDArray[np.int64], lengths: list[int]) -> Trace:
        assert self._model is not None
        prefill = tuple(max(1, length - self._decode_steps) for length in lengths)
        chunk = self._chunk or self._model.manifest.limits.prefill_chunk
        case = Case("feed", "", tuple(range(len(tokens))), tuple(lengths), prefill, chunk)
        return run_case(self._model, case, tokens)


class TableCompareFunc(BaseCompareFunc):
    """Says for each output that both have whether it is within the table of tolerances."""

    def __init__(self, dtype: str = "float32") -> None:
        self._tolerances = TOLERANCES[dtype]

    def __call__(
        self, iter_result0: IterationResult, iter_result1: IterationResult
    ) -> "OrderedDict[str, bool]":
        """Hold the second to the first."""
        verdicts = OrderedDict()
        for name in list(iter_result0):
            if name not in iter_result1:
                continue
            expected, actual = match_shapes(
                name, np.asarray(iter_result0[name]), np.asarray(iter_result1[name])
            )
            kind = find_kind(name)
            valid = np.ones(expected.shape[:2], np.bool_)
            distance = measure(kind, expected, actual, valid)
            verdicts[name] = distance.error <= find_tolerance(kind, self._tolerances)
        return verdicts
