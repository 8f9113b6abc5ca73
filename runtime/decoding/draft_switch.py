"""Decides whether drafting pays, and how many tokens to guess."""

from collections.abc import Sequence

from quatrain.runtime.decoding.draft_estimates import Acceptance, CallSeconds

__all__ = ["DraftSwitch"]

# Plain steps before the first guess: what drafting has to beat.
_WARM_UP = 2
# Guesses of each of the first rounds, whose outcome is awaited before anything is judged.
_FIRST_GUESSES, _FIRST_ROUNDS = 2, 3
# Drafting ends when it is slower than plain decoding, and begins again when it is faster by this.
_MARGIN = 1.05
# Plain steps before drafting is tried again: at first the second number, or so many that the trial
# takes no more than this share of their time; doubled each time.
_MOST_PLAIN, _FEWEST_PLAIN, _TRIAL_SHARE = 512, 32, 0.01
# Rounds after which drafting has proved itself: if it ends then, it is tried again soon.
_PROVEN = 32
# A trial is one round of one guess, and goes on while guesses are right.
_TRIAL_ROUNDS = 4
# While trying, what was known before counts for this many guesses.
_OLD_GUESSES = 2.0
# The last ones of so many rounds have a guess more: of two in a row one is timed.
_LONGER_EVERY, _LONGER_ROUNDS = 16, 2
# Rounds after which a plain step is timed again: more often where drafting gains so little that it
# costs next to nothing.
_PLAIN_EVERY, _PLAIN_SOON, _LITTLE_GAIN = 64, 4, 1.2
# Plain steps that are timed, of those before a trial: the last ones, with the cache as it is then.
_TIMED_STEPS = 5
# A clock may not tell shorter times from none.
_NO_TIME = 1e-9


class DraftSwitch:
    """What is known of drafting with one model and batch size; it outlives a call.

    The number of guesses is the one with the most expected tokens per second, from acceptance by
    place and the seconds of each kind of call. Where even that one loses against plain steps,
    drafting is off, and tried again after a number of steps that grows while it keeps failing.
    """

    def __init__(self, max_draft: int) -> None:
        self.is_on = True
        self._max_draft = max_draft
        self._acceptance = Acceptance(max_draft)
        self._seconds = CallSeconds()
        self._plain_left = _WARM_UP
        self._pause = _FEWEST_PLAIN
        self._num_rounds = 0  # since it was last switched
        self._best, self._gain = min(_FIRST_GUESSES, max_draft), 1.0

    @property
    def plain_seconds(self) -> float | None:
        """Seconds of a plain step; None before there was one."""
        return self._seconds.plain

    def choose(self) -> int:
        """Guesses of the next round; 0: a plain step."""
        if self._plain_left:
            return 0
        if not self.is_on:
            return 1
        is_longer = self._num_rounds % _LONGER_EVERY >= _LONGER_EVERY - _LONGER_ROUNDS
        return min(self._best + is_longer, self._max_draft)

    def expect_call(self) -> None:
        """A new call begins: other text, so a long pause is shortened."""
        self._seconds.expect_call()
        if not self.is_on:
            self._plain_left = min(self._plain_left, self._shortest_pause())

    def learn_plain(self, seconds: float) -> None:
        """A plain step was made."""
        self._plain_left -= self._plain_left > 0
        if self.is_on or self._plain_left < _TIMED_STEPS:
            self._seconds.learn_plain(seconds)
        if not self.is_on and not self._plain_left:
            self._acceptance.forget(_OLD_GUESSES)

    def learn_round(
        self,
        drafted: Sequence[int],
        accepted: Sequence[int],
        seconds_draft: float,
        seconds_verify: float,
    ) -> None:
        """A round was made: guesses of each row, and how many of them were right."""
        self._acceptance.learn(drafted, accepted)
        self._seconds.learn_round(max(drafted), seconds_draft, seconds_verify)
        self._num_rounds += 1
        self._find_best()
        if self.is_on:
            self._judge()
        else:
            self._judge_trial(is_right=2 * sum(accepted) >= sum(drafted))

    def _judge(self) -> None:
        if self._num_rounds >= _FIRST_ROUNDS and self._gain < 1:
            if self._num_rounds >= _PROVEN:
                self._pause = _FEWEST_PLAIN
            self._switch(is_on=False)
            self._rest()
        elif self._num_rounds % (_PLAIN_SOON if self._gain < _LITTLE_GAIN else _PLAIN_EVERY) == 0:
            self._plain_left = 1

    def _judge_trial(self, is_right: bool) -> None:
        if self._gain > _MARGIN:
            self._switch(is_on=True)
        elif not is_right or self._num_rounds >= _TRIAL_ROUNDS:
            self._num_rounds = 0
            self._rest()

    def _switch(self, is_on: bool) -> None:
        self.is_on = is_on
        self._num_rounds = 0

    def _rest(self) -> None:
        self._plain_left = max(self._pause, self._shortest_pause())
        self._pause = min(2 * self._plain_left, _MOST_PLAIN)

    def _shortest_pause(self) -> int:
        plain = self._seconds.plain
        if plain is None:
            return _FEWEST_PLAIN
        extra = self._seconds.predict_rounds(1)[0] - plain
        steps = extra / max(plain, _NO_TIME) / _TRIAL_SHARE
        return round(min(max(steps, _FEWEST_PLAIN), _MOST_PLAIN))

    def _find_best(self) -> None:
        """The number of guesses with which rounds are expected to be the fastest, and how many
        times as fast as plain steps; among those near what was timed, as predictions further away
        are guesswork."""
        plain = self._seconds.plain
        most = min(max(_FIRST_GUESSES, 2 * self._seconds.most_verified), self._max_draft)
        if plain is None or not self._seconds.most_verified:
            return
        tokens, seconds = self._acceptance.expect_tokens(most), self._seconds.predict_rounds(most)
        gains = [plain * t / max(s, _NO_TIME) for t, s in zip(tokens, seconds, strict=True)]
        self._gain = max(gains)
        self._best = gains.index(self._gain) + 1
