"""Runs one side through all cases and judges it."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.comparison.bisection import Bisection, bisect
from quatrain.exporter.comparison.cases import Case
from quatrain.exporter.comparison.execution import run_case
from quatrain.exporter.comparison.expectation import Expectation, chose_alike
from quatrain.exporter.comparison.greedy import generate_greedily, judge_generated
from quatrain.exporter.comparison.judge import Judge
from quatrain.exporter.comparison.polygraphy_files import PolygraphyFolder
from quatrain.exporter.comparison.result import Check, Flip, RunnerInfo
from quatrain.exporter.comparison.runners import Runner
from quatrain.exporter.comparison.tolerances import TOLERANCES
from quatrain.exporter.comparison.trace import Trace
from quatrain.runtime.manifest import Manifest
from quatrain.runtime.session import Model

__all__ = ["Comparer", "Verdict"]


@dataclass(slots=True)
class Verdict:
    """What one side was found to do. `bisection` is there where the graphs were tapped, and
    `reports_layers` says whether anybody wants to see all of it."""

    info: RunnerInfo
    judge: Judge | None = None
    checks: list[Check] = field(default_factory=list)
    flips: list[Flip] = field(default_factory=list)
    bisection: Bisection | None = None
    reports_layers: bool = False


@dataclass(frozen=True, slots=True)
class Comparer:
    """A bundle, the cases out of the token table `tokens`, and what the reference says of them."""

    bundle: Path
    manifest: Manifest
    tokens: NDArray[np.int64]
    cases: list[Case]
    steps: int
    expectation: Expectation
    saved: PolygraphyFolder | None

    def compare(self, runner: Runner, layers: bool) -> Verdict:
        """Run one side; the caller has seen to it that it is there."""
        start = time.perf_counter()
        dtype = runner.find_dtype(self.manifest)
        judge = Judge(runner.name, dtype)
        verdict = Verdict(RunnerInfo(runner.name, "compared", "", dtype), judge)
        follows = self._follows(runner)
        with runner.prepare(self.bundle, self.manifest, follows) as folder:
            with runner.open(folder) as model:
                self._run_cases(model, runner, verdict)
            verdict.checks = judge.list_checks()
            verdict.flips = list(judge.meaning.flips)
            if self.steps and runner.backend is not None and not judge.has_not_finite:
                self._generate(folder, runner, verdict)
        self._look_inside(runner, verdict, layers)
        seconds = time.perf_counter() - start
        verdict.info = RunnerInfo(runner.name, "compared", "", dtype, seconds)
        return verdict

    def _follows(self, runner: Runner) -> bool:
        """Whether the reference follows this side in its choice of channels."""
        return self.expectation.selects and runner.can_be_tapped

    def _expect(self, runner: Runner, case: Case, trace: Trace) -> Trace:
        expected = self.expectation.of_case(case)
        if not self._follows(runner) or chose_alike(case, expected, trace):
            return expected
        return self.expectation.following(case.take(self.tokens), trace)

    def _run_cases(self, model: Model, runner: Runner, verdict: Verdict) -> None:
        judge = verdict.judge
        assert judge is not None
        for case in self.cases:
            trace = run_case(model, case, self.tokens)
            expected = self._expect(runner, case, trace)
            judge.add(case, case.take(self.tokens), expected, trace)
            if self.saved is not None:
                self.saved.add(runner.name, case, case.take(self.tokens), expected, trace)
            if self._follows(runner) and case is (judge.failed_case or self.cases[0]):
                verdict.bisection = bisect(runner.name, verdict.info.dtype, case, expected, trace)
        if self.saved is not None and not runner.is_deployed:
            self.saved.record_calls(model, self.cases[0], self.tokens)

    def _generate(self, folder: Path, runner: Runner, verdict: Verdict) -> None:
        assert runner.backend is not None
        generated = generate_greedily(folder, runner.backend, self.tokens, self.steps)
        fed = generated.tokens[:, :-1]
        if self._follows(runner):
            case = generated.as_case(self.manifest.limits.prefill_chunk)
            with runner.open(folder) as model:
                expected = self.expectation.following(fed, run_case(model, case, fed))
        else:
            expected = self.expectation.of_tokens(fed)
        tolerances = TOLERANCES[verdict.info.dtype]
        check, flips = judge_generated(generated, expected, runner.name, tolerances)
        verdict.checks.append(check)
        verdict.flips += flips

    def _look_inside(self, runner: Runner, verdict: Verdict, layers: bool) -> None:
        """What happens within the graphs, where somebody wants to know: one case, once more if they
        were not tapped yet."""
        assert verdict.judge is not None
        failed = not all(check.passed for check in verdict.checks)
        if not (layers or failed or self.expectation.selects):
            return
        if verdict.bisection is None:
            case = verdict.judge.failed_case or self.cases[0]
            with (
                runner.prepare(self.bundle, self.manifest, runner.can_be_tapped) as folder,
                runner.open(folder) as model,
            ):
                trace = run_case(model, case, self.tokens)
            expected = self.expectation.of_case(case)
            verdict.bisection = bisect(runner.name, verdict.info.dtype, case, expected, trace)
        check = verdict.bisection.check_selection()
        if check is not None:
            verdict.checks.append(check)
        verdict.reports_layers = layers or not all(check.passed for check in verdict.checks)
