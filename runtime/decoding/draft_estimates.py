"""What drafting needs to know of itself: how often guesses are right, and how long calls take."""

from collections import deque
from collections.abc import Collection, Sequence

__all__ = ["Acceptance", "CallSeconds"]

# Weight that everything before keeps with each round: some 20 rounds count.
_KEEP = 0.95
# Before anything was seen, a first guess is right more often than not.
_FIRST_GUESS = 0.6
# Calls of a kind whose median stands for it; so few follow a cache that grows.
_NUM_TIMES = 5


class Acceptance:
    """How likely the guess at each place is right, given that those before it were.

    An exponential average over rounds. A place of which little is known is taken to be like the
    one before it.
    """

    def __init__(self, max_draft: int) -> None:
        self._right = [0.0] * max_draft
        self._seen = [0.0] * max_draft
        self._right[0], self._seen[0] = _FIRST_GUESS, 1.0

    def learn(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """A round: of each row, how many guesses it had and how many were right."""
        self._right = [_KEEP * weight for weight in self._right]
        self._seen = [_KEEP * weight for weight in self._seen]
        for guesses, right in zip(drafted, accepted, strict=True):
            for place in range(min(guesses, right + 1)):
                self._seen[place] += 1
                self._right[place] += place < right

    def forget(self, most: float) -> None:
        """Let what was seen count for no more than `most` guesses at each place."""
        for place, seen in enumerate(self._seen):
            if seen > most:
                self._right[place] *= most / seen
                self._seen[place] = most

    def expect_tokens(self, most: int) -> list[float]:
        """Tokens of a row after a round of 1 to `most` guesses: those that are right, and one."""
        expected = []
        total = reached = likely = 1.0
        for place in range(most):
            prior = 1.0 if place else 0.0
            likely = (self._right[place] + prior * likely) / (self._seen[place] + prior)
            reached *= likely
            total += reached
            expected.append(total)
        return expected


class CallSeconds:
    """Seconds of a plain step, of a guess, and of verifying a number of guesses.

    `plain` is None before there was a plain step. It is no more than any verification takes, which
    does the same and more: a step that seems to was disturbed, or had a longer cache.
    """

    def __init__(self) -> None:
        self.plain: float | None = None
        self._guess = 0.0
        self._verify: dict[int, float] = {}
        self._plain_times: deque[float] = deque(maxlen=_NUM_TIMES)
        self._guess_times: deque[float] = deque(maxlen=_NUM_TIMES)
        self._verify_times: dict[int, deque[float]] = {}
        self._last_verified = 0

    def expect_call(self) -> None:
        """A new call begins, with buffers of its own that have to be made and bound first."""
        self._last_verified = 0

    @property
    def most_verified(self) -> int:
        """The largest number of guesses whose verification was timed often enough; else 0."""
        return max(self._verify, default=0)

    def learn_plain(self, seconds: float) -> None:
        """A plain step was made."""
        self._plain_times.append(seconds)
        self._settle_plain()

    def learn_round(self, num_drafted: int, seconds_draft: float, seconds_verify: float) -> None:
        """Guesses were made and verified.

        A verification counts if the one before it was of as many guesses: buffers are bound for
        each number, and when it changes they have to be bound again.
        """
        self._guess_times.append(seconds_draft / num_drafted)
        self._guess = _settle(self._guess_times)
        if num_drafted == self._last_verified:
            times = self._verify_times.setdefault(num_drafted, deque(maxlen=_NUM_TIMES))
            times.append(seconds_verify)
            self._verify[num_drafted] = _settle(times)
        self._last_verified = num_drafted
        self._settle_plain()

    def predict_rounds(self, most: int) -> list[float]:
        """Of rounds of 1 to `most` guesses.

        What was not timed lies on a line between its neighbours, a plain step being a verification
        of no guess, or on the one through the last two.
        """
        points = sorted(self._verify.items())
        if self.plain is not None:
            points.insert(0, (0, self.plain))
        if len(points) < 2:
            points = [points[0], (most, points[0][1])] if points else [(0, 0.0), (most, 0.0)]
        seconds = []
        segment = 0
        for count in range(1, most + 1):
            while segment < len(points) - 2 and count > points[segment + 1][0]:
                segment += 1
            verify = _interpolate(points[segment], points[segment + 1], count)
            seconds.append(self._guess * count + verify)
        return seconds

    def _settle_plain(self) -> None:
        if self._plain_times:
            self.plain = min([_settle(self._plain_times), *self._verify.values()])


def _interpolate(before: tuple[int, float], after: tuple[int, float], count: int) -> float:
    slope = (after[1] - before[1]) / (after[0] - before[0])
    if count > after[0]:
        slope = max(slope, 0.0)
    return after[1] + slope * (count - after[0])


def _settle(times: Collection[float]) -> float:
    """Their median; of two the smaller, since whatever disturbs a call makes it longer."""
    return min(times) if len(times) < 3 else sorted(times)[len(times) // 2]
