"""Holds what a runner computed to the reference: numbers, tensor by tensor, and their meaning."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.comparison.cases import Case
from quatrain.exporter.comparison.distance import LARGEST, find_tolerance, measure
from quatrain.exporter.comparison.meaning import Meaning
from quatrain.exporter.comparison.result import Check
from quatrain.exporter.comparison.tolerances import TOLERANCES, find_kind
from quatrain.exporter.comparison.trace import Trace, list_tokens, match_shapes

__all__ = ["Judge"]

_GROUPS = {"key_cache": "key caches", "value_cache": "value caches"}


@dataclass(frozen=True, slots=True)
class _Worst:
    error: float
    tolerance: float
    detail: str


class Judge:
    """Collects the cases of one runner.

    `failed_case` is the first with a tensor beyond its tolerance, None if there is none.
    """

    def __init__(self, runner: str, dtype: str) -> None:
        self._runner = runner
        self._tolerances = TOLERANCES[dtype]
        self._worst: dict[str, _Worst] = {}
        self._num_not_finite = 0
        self._first_not_finite = ""
        self.meaning = Meaning(runner)
        self.failed_case: Case | None = None

    def add(self, case: Case, tokens: NDArray[np.int64], reference: Trace, found: Trace) -> None:
        """Take a case in: its sequences [B, L], and what both sides computed of them."""
        for name, array in reference.items():
            kind = find_kind(name)
            if name in found and kind not in ("residual", "selection"):
                expected, actual = match_shapes(name, array, found[name])
                valid = list_tokens(name, case.lengths, expected.shape[1])
                self._judge(case, name, expected, actual, valid)
        self.meaning.add(case, tokens, reference, found)

    @property
    def has_not_finite(self) -> bool:
        """Whether anything was NaN or infinite."""
        return self._num_not_finite > 0

    def list_checks(self) -> list[Check]:
        """One for each tensor or group of them, and what they mean."""
        finite = Check(
            "finite values",
            self._num_not_finite == 0,
            self._num_not_finite,
            0,
            self._runner,
            self._first_not_finite or "NaN and infinite ones",
        )
        numbers = [
            Check(
                name,
                worst.error <= worst.tolerance,
                "not finite" if worst.error >= LARGEST else worst.error,
                worst.tolerance,
                self._runner,
                worst.detail,
            )
            for name, worst in self._worst.items()
        ]
        return [finite, *numbers, *self.meaning.list_checks(self._tolerances)]

    def _judge(
        self,
        case: Case,
        name: str,
        expected: NDArray[np.float32],
        actual: NDArray[np.float32],
        valid: NDArray[np.bool_],
    ) -> None:
        if not valid.any():
            return
        kind = find_kind(name)
        tolerance = find_tolerance(kind, self._tolerances)
        distance = measure(kind, expected, actual, valid)
        sequence, position = distance.locate_worst()
        where = f"case {case.name}, sequence {sequence}, position {position}"
        if distance.num_not_finite:
            self._num_not_finite += distance.num_not_finite
            own = "" if np.isfinite(expected[valid]).all() else ", as in the checkpoint itself"
            self._first_not_finite = self._first_not_finite or f"first in {name}, {where}{own}"
        if self.failed_case is None and distance.error > tolerance:
            self.failed_case = case
        group = _GROUPS.get(name.partition(".")[0])
        known = self._worst.get(group or name)
        if known is None or distance.error > known.error:
            detail = f"{name}, {where}" if group else where
            self._worst[group or name] = _Worst(distance.error, tolerance, detail)
