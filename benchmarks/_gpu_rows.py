"""The rows of `gpu_check.py`: kernels against references, and against plain PyTorch."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._gpu_cases import list_right_cases
from benchmarks._kernel_alternatives import list_alternatives
from benchmarks._kernel_cases import (
    AttentionCase,
    Case,
    FeedForwardCase,
    make_definition,
)
from benchmarks._kernel_inputs import TOLERANCES, make_inputs, run_reference
from benchmarks._kernel_run import prepare_call
from quatrain.plugins.definition import DType

__all__ = ["RightRow", "TimedRow", "check_right", "describe_device", "measure_cases"]

Array = NDArray[np.float32]

_TIMED_DTYPE: DType = "bfloat16"
_FEED_FORWARD_GOAL = 2.5
_ATTENTION_GOAL = 0.8
_LONG_CONTEXT = 32768


class Timer(Protocol):
    """What `GpuTimer` is."""

    @property
    def start_seconds(self) -> float:
        """What is in every time, whatever is timed."""
        ...

    @property
    def copy_bytes_per_s(self) -> float:
        """Of a copy within the device's memory."""
        ...

    def measure_seconds(self, call: Callable[[], object]) -> float:
        """What a call takes."""
        ...


@dataclass(frozen=True, slots=True)
class RightRow:
    """A case against its reference."""

    operator: str
    call: str
    dtype: DType
    error: float | None
    """The largest difference of any output, as a share of the output's largest value; None where
    an output is not a number, or there is none."""
    tolerance: float
    is_right: bool
    failure: str | None = None
    """What was raised instead of a result."""


@dataclass(frozen=True, slots=True)
class TimedRow:
    """A case against the best alternative."""

    operator: str
    call: str
    dtype: DType
    microseconds: float
    alternative: str
    alternative_microseconds: float
    speedup: float
    gb_per_s: float
    """Bytes that must be moved, over the time."""
    share_of_copy: float
    error: float | None
    """To the alternative; None where that computes something else, or it is not a number."""
    is_right: bool
    goal: str | None
    meets_goal: bool | None


def describe_device(device: str) -> dict[str, Any]:
    """Which GPU; or that there was none."""
    if device == "cpu":
        return {"name": "no GPU: Triton's interpreter on the CPU"}
    facts = torch.cuda.get_device_properties(0)
    return {
        "name": facts.name,
        "sm": f"{facts.major}.{facts.minor}",
        "multiprocessors": facts.multi_processor_count,
        "memory_gib": round(facts.total_memory / 2**30, 1),
    }


def check_right(device: str) -> Iterator[RightRow]:
    """Every case against NumPy."""
    for number, (case, dtype) in enumerate(list_right_cases(tiny=device == "cpu")):
        try:
            inputs = make_inputs(case, dtype, device, seed=number)
            call = prepare_call(make_definition(case), inputs)
            call.launch()
            error = _find_largest_error(call.outputs, run_reference(case, inputs))
        except Exception as problem:  # a kernel that does not compile, or a fault on the GPU
            yield _make_failure(case, dtype, problem)
            continue
        is_right = error is not None and error <= TOLERANCES[dtype]
        yield RightRow(case.operator, case.name, dtype, error, TOLERANCES[dtype], is_right)


def _make_failure(case: Case, dtype: DType, problem: Exception) -> RightRow:
    words = f"{type(problem).__name__}: {problem}"
    return RightRow(case.operator, case.name, dtype, None, TOLERANCES[dtype], False, words)


def measure_cases(
    cases: Sequence[Case], timer: Timer, *, deadline: float, device: str = "cuda"
) -> dict[str, Any]:
    """Every case, until the deadline (of `time.monotonic`); the rest is named."""
    rows: list[TimedRow] = []
    failed: list[RightRow] = []
    not_run: list[str] = []
    for case in cases:
        name = f"{case.operator} {case.name}"
        if time.monotonic() > deadline:
            not_run.append(f"{name}: no time left")
            continue
        try:
            rows.append(_measure(case, timer, device))
        except torch.cuda.OutOfMemoryError:
            not_run.append(f"{name}: not enough memory")
        except Exception as problem:
            failed.append(_make_failure(case, _TIMED_DTYPE, problem))
    return {
        "copy_gb_per_s": timer.copy_bytes_per_s / 1e9,
        "graph_start_microseconds": timer.start_seconds * 1e6,
        "timed": [asdict(row) for row in rows],
        "failed": [asdict(row) for row in failed],
        "not_run": not_run,
    }


def _measure(case: Case, timer: Timer, device: str) -> TimedRow:
    inputs = make_inputs(case, _TIMED_DTYPE, device)
    definition = make_definition(case)
    call = prepare_call(definition, inputs)
    seconds = timer.measure_seconds(call.launch)
    alternatives = list_alternatives(case, inputs)
    times = {name: timer.measure_seconds(run) for name, run in alternatives.items()}
    best = min(times, key=lambda name: times[name])
    error, is_right = None, True
    if not isinstance(case, FeedForwardCase):
        error = _find_largest_error(call.outputs, _to_numpy(alternatives[best]()))
        # PyTorch rounds between its operations: each adds about one rounding of the type.
        is_right = error is not None and error <= 2 * TOLERANCES[_TIMED_DTYPE]
    dtypes, shapes = zip(*case.list_inputs(_TIMED_DTYPE), strict=True)
    bytes_per_s = definition.count_work(dtypes, shapes).bytes_moved / seconds
    speedup, share = times[best] / seconds, bytes_per_s / timer.copy_bytes_per_s
    goal, meets_goal = _judge(case, speedup, share)
    return TimedRow(
        operator=case.operator,
        call=case.name,
        dtype=_TIMED_DTYPE,
        microseconds=seconds * 1e6,
        alternative=best,
        alternative_microseconds=times[best] * 1e6,
        speedup=speedup,
        gb_per_s=bytes_per_s / 1e9,
        share_of_copy=share,
        error=error,
        is_right=is_right,
        goal=goal,
        meets_goal=meets_goal,
    )


def _judge(case: Case, speedup: float, share: float) -> tuple[str | None, bool | None]:
    """What we set out to reach with a case, and whether it is reached."""
    if isinstance(case, FeedForwardCase) and case.rows == 1 and case.hidden >= 4096:
        sparsity = case.bank_size / case.top_k
        goal = f"{_FEED_FORWARD_GOAL} x dense at {sparsity:g} x sparsity"
        return goal, speedup >= _FEED_FORWARD_GOAL
    if isinstance(case, AttentionCase) and case.tokens == 1 and case.live >= _LONG_CONTEXT:
        return f"{_ATTENTION_GOAL:.0%} of copy bandwidth", share >= _ATTENTION_GOAL
    return None, None


def _find_largest_error(outputs: Sequence[torch.Tensor], expected: Sequence[Array]) -> float | None:
    """None where one is not a number and the other is."""
    pairs = zip(_to_numpy(outputs), expected, strict=True)
    error = max(_find_error(a, b) for a, b in pairs)
    return error if math.isfinite(error) else None


def _find_error(found: Array, expected: Array) -> float:
    difference = np.abs(found - expected)
    if not np.isfinite(difference).all():
        return math.inf
    scale = max(float(np.abs(expected).max(initial=0)), 1e-6)
    return float(difference.max(initial=0)) / scale


def _to_numpy(tensors: Sequence[torch.Tensor]) -> list[Array]:
    return [tensor.float().cpu().numpy() for tensor in tensors]
