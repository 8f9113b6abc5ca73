"""Runs a build so that Ctrl-C reaches it: TensorRT works in a thread, this one listens."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

__all__ = ["run_cancellable"]

Result = TypeVar("Result")


def run_cancellable(
    work: Callable[[], Result],
    cancel: Callable[[], None],
    beat: Callable[[], None],
    interval: float = 30.0,
) -> Result:
    """Run `work` in a thread and return what it returns.

    Whatever is raised here meanwhile (KeyboardInterrupt) calls `cancel`, and goes on when the work
    has ended. `beat` is called every `interval` seconds.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="quatrain-build") as pool:
        future = pool.submit(work)
        try:
            while not wait([future], timeout=interval).done:
                beat()
            return future.result()
        except BaseException:
            cancel()
            raise
