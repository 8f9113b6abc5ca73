"""What differences mean: next tokens, their distribution, the text's perplexity, the exits."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.comparison.cases import Case
from quatrain.exporter.comparison.exit_outputs import log_softmax
from quatrain.exporter.comparison.result import Check, Flip, Histogram
from quatrain.exporter.comparison.tolerances import Tolerances
from quatrain.exporter.comparison.trace import Trace

__all__ = ["Meaning", "describe_flips"]

_ROWS = 64  # of log-probabilities in float64 at a time
_BINS = 41

Floats = NDArray[np.float64]


class Meaning:
    """Collects what one runner says of the cases, and what the reference says of them."""

    def __init__(self, runner: str) -> None:
        self._runner = runner
        self._kl: list[Floats] = []
        self._nll: list[tuple[float, float]] = []
        self._targets = 0
        self._chance = 0.0  # log V, in nats
        self._exit_shares: list[tuple[Floats, Floats]] = []
        self.flips: list[Flip] = []
        self.longest_kl: list[float] = []
        self.differences: Histogram | None = None

    def add(self, case: Case, tokens: NDArray[np.int64], reference: Trace, found: Trace) -> None:
        """Take a case's sequences [B, L] in, and what both sides computed of them."""
        name = "mixture_logprobs" if "mixture_logprobs" in found else "logits"
        pairs = zip(reference[name], found[name], case.lengths, strict=True)
        for b, (expected, scores, length) in enumerate(pairs):
            kl = self._add_sequence(case.name, b, tokens[b], expected[:length], scores[:length])
            if len(kl) > len(self.longest_kl) and np.isfinite(kl).all():
                self.longest_kl = kl.tolist()
        if self.differences is None:
            self.differences = _count_differences(reference[name], found[name], case)
        if name != "logits":
            self._add_exits(case, reference, found)

    def list_checks(self, tolerances: Tolerances) -> list[Check]:
        """What all of it amounts to."""
        kl = np.concatenate(self._kl)
        agreed = 1 - sum(flip.margin > tolerances.tie for flip in self.flips) / len(kl)
        detail = describe_flips(self.flips, len(kl), tolerances.tie)
        perplexity, change = self._measure_perplexity()
        checks = [
            self._check("top-1 agreement", agreed, tolerances.top1, detail, at_least=True),
            self._check("KL mean", float(kl.mean()), tolerances.kl_mean, "nats a token"),
            self._check("KL max", float(kl.max()), tolerances.kl_max, "nats"),
            self._check(
                "perplexity difference",
                change,
                tolerances.perplexity,
                f"of {perplexity} over {self._targets} tokens",
            ),
        ]
        if self._exit_shares:
            expected_shares, shares = self.average_exit_shares()
            worst = float(np.abs(np.subtract(expected_shares, shares)).max())
            checks.append(
                self._check("exit shares", worst, tolerances.exit_share, "the largest difference")
            )
        return checks

    def average_exit_shares(self) -> tuple[list[float], list[float]]:
        """The mean probability of each exit: the reference's and the runner's."""
        sides = []
        for i in range(2):
            probabilities = np.concatenate([pair[i] for pair in self._exit_shares], axis=-1)
            sides.append([float(share) for share in probabilities.mean(axis=-1)])
        return sides[0], sides[1]

    @property
    def has_exits(self) -> bool:
        """Whether there is anything to average."""
        return bool(self._exit_shares)

    def _measure_perplexity(self) -> tuple[str, float]:
        """The reference's, and by what share the other one differs from it.

        A text that a model finds less likely than chance would tells nothing: logits of any size
        stand at its tokens, and so do their errors. There the difference in nats is divided by how
        many times those of chance, log V, the reference needs.
        """
        targets = max(self._targets, 1)
        expected, found = (sum(pair[i] for pair in self._nll) / targets for i in range(2))
        times_chance = max(1.0, expected / max(self._chance, 1.0))
        with np.errstate(over="ignore"):
            change = abs(float(np.expm1((found - expected) / times_chance)))
            return f"{np.exp(expected):.4g}", change

    def _add_sequence(
        self,
        case: str,
        sequence: int,
        tokens: NDArray[np.int64],
        expected: NDArray[np.float32],
        scores: NDArray[np.float32],
    ) -> Floats:
        """KL divergence at each position [L]."""
        pieces, nll = [], np.zeros(2)
        self._chance = float(np.log(expected.shape[-1]))
        for at, left, right in _split(expected, scores):
            with np.errstate(invalid="ignore"):
                pieces.append((np.exp(left) * (left - right)).sum(axis=-1))
            targets = tokens[at + 1 : at + 1 + len(left)]
            rows = np.arange(min(len(targets), len(expected) - 1 - at))
            nll -= [side[rows, targets[: len(rows)]].sum() for side in (left, right)]
            self._targets += len(rows)
            self._find_flips(case, sequence, at, left, right)
        kl: Floats = np.maximum(np.concatenate(pieces), 0.0)  # rounding gives less than none
        self._kl.append(kl)
        self._nll.append((float(nll[0]), float(nll[1])))
        return kl

    def _find_flips(self, case: str, sequence: int, at: int, left: Floats, right: Floats) -> None:
        best, other = left.argmax(axis=-1), right.argmax(axis=-1)
        for row in np.flatnonzero(best != other):
            margin = float(left[row, best[row]] - left[row, other[row]])
            self.flips.append(
                Flip(
                    self._runner,
                    case,
                    sequence,
                    at + int(row),
                    int(best[row]),
                    int(other[row]),
                    margin,
                )
            )

    def _add_exits(self, case: Case, reference: Trace, found: Trace) -> None:
        names = [f"exits.{k}.logprob" for k in range(sum(n.endswith(".logprob") for n in found))]
        sides = []
        for trace in (reference, found):
            probabilities = np.exp(np.stack([trace[name] for name in names]).astype(np.float64))
            rows = [probabilities[:, b, :length] for b, length in enumerate(case.lengths)]
            sides.append(np.concatenate(rows, axis=-1))
        self._exit_shares.append((sides[0], sides[1]))

    def _check(
        self, name: str, value: float, tolerance: float, detail: str, at_least: bool = False
    ) -> Check:
        if not np.isfinite(value):
            return Check(name, False, "not finite", tolerance, self._runner, detail, at_least)
        passed = value >= tolerance if at_least else value <= tolerance
        return Check(name, passed, value, tolerance, self._runner, detail, at_least)


def describe_flips(flips: list[Flip], total: int, tie: float) -> str:
    """How many positions differ, and by how much."""
    if not flips:
        return f"all {total} positions agree"
    ties = sum(flip.margin <= tie for flip in flips)
    largest = max(flip.margin for flip in flips)
    return (
        f"{len(flips)} of {total} positions differ, {ties} of them ties; margins to {largest:.3g}"
    )


def _split(
    expected: NDArray[np.float32], scores: NDArray[np.float32]
) -> Iterator[tuple[int, Floats, Floats]]:
    """Log-probabilities of both, some rows at a time, with where they begin."""
    for at in range(0, len(expected), _ROWS):
        rows = slice(at, at + _ROWS)
        with np.errstate(invalid="ignore"):
            left, right = log_softmax(expected[rows]), log_softmax(scores[rows])
        yield at, left.astype(np.float64), right.astype(np.float64)


def _count_differences(
    expected: NDArray[np.float32], scores: NDArray[np.float32], case: Case
) -> Histogram | None:
    """Of all scores of the longest sequence; None where they are not finite."""
    length = case.lengths[0]
    with np.errstate(invalid="ignore"):
        differences = scores[0, :length] - expected[0, :length]
    if not np.isfinite(differences).all():
        return None
    end = float(np.abs(differences).max()) or 1.0
    counts, edges = np.histogram(differences, _BINS, (-end, end))
    return Histogram([float(edge) for edge in edges], [int(count) for count in counts])
