"""The steps of long work: told of as they pass, and saved now and then."""

import time
from collections.abc import Callable, Iterator

from quatrain.exporter.progress import Progress

__all__ = ["walk_steps"]

_SAY_SECONDS = 10.0
_SAVE_SECONDS = 30.0
# Writing what there is of a large model takes a while: at most a tenth of the time goes there.
_SAVE_SHARE = 10


def walk_steps(
    what: str,
    count: int,
    done: int,
    progress: Progress,
    *,
    describe: Callable[[], str] = str,
    save: Callable[[int], None] | None = None,
) -> Iterator[int]:
    """The steps from `done` on, telling now and then how long the rest will take.

    Args:
        what: What the steps are called: "windows".
        describe: Whatever else there is to say of the steps so far.
        save: Called with the number of steps behind, every half minute and at the end: an
            interruption loses no more.
    """
    if done:
        progress.say(f"  going on after {done} of {count} {what}")
    start = said_at = saved_at = time.monotonic()
    save_seconds = 0.0
    for index in range(done, count):
        yield index
        now = time.monotonic()
        due = max(_SAVE_SECONDS, _SAVE_SHARE * save_seconds)
        if save is not None and (index + 1 == count or now - saved_at >= due):
            save(index + 1)
            saved_at = time.monotonic()
            save_seconds = saved_at - now
        if now - said_at >= _SAY_SECONDS:
            left = (now - start) / (index + 1 - done) * (count - index - 1)
            progress.say(f"  {index + 1} of {count} {what}{describe()}, about {left:.0f} s left")
            said_at = now
