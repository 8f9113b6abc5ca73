"""Writes inputs and results in Polygraphy's own format, to be judged again by its tools."""

import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.bundle import write_file
from quatrain.exporter.comparison.cases import Case
from quatrain.exporter.comparison.execution import run_case
from quatrain.exporter.comparison.recording import Call, Recording
from quatrain.exporter.comparison.trace import Trace, list_tokens, match_shapes
from quatrain.exporter.errors import ComparisonError
from quatrain.runtime.session import Model

__all__ = ["PolygraphyFolder"]

Arrays = dict[str, NDArray[Any]]


class PolygraphyFolder:
    """Collects what a comparison computes, and writes it to a folder at the end, each file whole or
    not at all.

    - `inputs.json`: the token ids and lengths of each case, one iteration for each.
    - `RUNNER.json`, `RUNNER.reference.json`: what that side and the reference computed of them, for
      `polygraphy run --load-outputs`. Tokens behind the end of a sequence are zeros on both sides.
    - `RUNNER.accuracy.json`: their differences, for `polygraphy check accuracy`.
    - `GRAPH.inputs.json`, `GRAPH.outputs.json`: the first calls of each CPU graph, caches included,
      for `polygraphy run GRAPH.cpu.float32.onnx --onnxrt --load-inputs ... --load-outputs ...`.

    Raises:
        ComparisonError: Polygraphy is not installed, or the folder cannot be made or written to.
    """

    def __init__(self, folder: Path) -> None:
        _require_polygraphy(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise _write_error(folder, error) from error
        self._folder = folder
        self._inputs: dict[str, Arrays] = {}
        self._sides: dict[str, list[Arrays]] = {}
        self._calls: dict[str, list[Call]] = {}

    def add(
        self, runner: str, case: Case, tokens: NDArray[np.int64], expected: Trace, found: Trace
    ) -> None:
        """Keep a case's sequences [B, L], and what both sides computed of them."""
        lengths = np.asarray(case.lengths, np.int64)
        self._inputs[case.name] = {"token_ids": tokens, "lengths": lengths}
        left, right = _align(case, expected, found)
        self._sides.setdefault(f"{runner}.reference", []).append(left)
        self._sides.setdefault(runner, []).append(right)

    def record_calls(self, model: Model, case: Case, tokens: NDArray[np.int64]) -> None:
        """Run a case out of the token table once more, and keep the first calls of each graph."""
        if self._calls:
            return
        with Recording(model) as recording:
            run_case(model, case, tokens)
        self._calls = recording.calls

    def write(self) -> None:
        """Write all of it.

        Raises:
            ComparisonError: A file cannot be written; those before it are there.
        """
        to_json: Any = import_module("polygraphy.json").to_json
        logger: Any = import_module("polygraphy.logger").G_LOGGER
        with logger.verbosity(logger.CRITICAL):
            self._write_file("inputs", to_json(list(self._inputs.values())))
            for runner in self._runners:
                self._write_sides(runner)
            for name, calls in self._calls.items():
                self._write_file(f"{name}.inputs", to_json([inputs for inputs, _ in calls]))
                outputs = {name: [outputs for _, outputs in calls]}
                self._write_file(f"{name}.outputs", _make_results(outputs).to_json())

    def _write_sides(self, runner: str) -> None:
        comparator: Any = import_module("polygraphy.comparator")
        sides = {name: self._sides[name] for name in (f"{runner}.reference", runner)}
        for name, iterations in sides.items():
            self._write_file(name, _make_results({name: iterations}).to_json())
        # Of the largest errors, which can be judged by other thresholds than these.
        judge = comparator.SimpleCompareFunc(check_error_stat="max", atol=1e-4, rtol=0.0)
        accuracy = comparator.Comparator.compare_accuracy(_make_results(sides), compare_func=judge)
        self._write_file(f"{runner}.accuracy", accuracy.to_json())

    @property
    def _runners(self) -> list[str]:
        return [name for name in self._sides if not name.endswith(".reference")]

    def _write_file(self, stem: str, text: str) -> None:
        path = self._folder / f"{stem}.json"
        try:
            write_file(path, text.encode())
        except OSError as error:
            raise _write_error(path, error) from error


def _write_error(path: Path, error: OSError) -> ComparisonError:
    return ComparisonError(
        f"write results to {path} (--save-polygraphy)",
        error.strerror or str(error),
        "name a folder that can be made and written to, on a disk with room",
    )


def _make_results(sides: dict[str, list[Arrays]]) -> Any:
    results: Any = import_module("polygraphy.comparator").RunResults()
    for name, iterations in sides.items():
        results.add(iterations, runner_name=name)
    return results


def _align(case: Case, expected: Trace, found: Trace) -> tuple[Arrays, Arrays]:
    """What both sides have, of one shape and float32, with zeros where there are no tokens."""
    left, right = {}, {}
    for name, array in expected.items():
        if name in found:
            reference, actual = match_shapes(name, array, found[name])
            valid = list_tokens(name, case.lengths, reference.shape[1])
            mask = valid.reshape(*valid.shape, *[1] * (reference.ndim - 2))
            left[name] = np.ascontiguousarray(np.where(mask, reference, 0), np.float32)
            right[name] = np.ascontiguousarray(np.where(mask, actual, 0), np.float32)
    return left, right


def _require_polygraphy(folder: Path) -> None:
    try:
        import polygraphy  # noqa: F401
    except ImportError as error:
        raise ComparisonError(
            f"write results for Polygraphy to {folder}",
            "polygraphy is not installed",
            "pip install 'quatrain[compare]', or leave it out",
        ) from error
