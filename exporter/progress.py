"""Progress of long work: each stage with its seconds, bytes and the peak memory so far."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Progress", "Stage", "peak_rss_bytes"]


@dataclass(slots=True)
class Stage:
    """One finished or running stage; `bytes` is what it wrote or read, where that matters."""

    name: str
    seconds: float = 0.0
    bytes: int | None = None
    peak_rss_bytes: int = 0


class Progress:
    """Collects stages and tells `report` of each as a line of text (default: nobody)."""

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        self.stages: list[Stage] = []
        self._report = report or (lambda line: None)

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Time a stage; it counts only when it ends without an error."""
        stage = Stage(name)
        self.say(f"{name} ...")
        start = time.perf_counter()
        yield stage
        stage.seconds = time.perf_counter() - start
        stage.peak_rss_bytes = peak_rss_bytes()
        self.stages.append(stage)
        size = "" if stage.bytes is None else f"  {stage.bytes / 1e6:,.1f} MB"
        self.say(
            f"{name}: {stage.seconds:.2f} s{size}  peak memory {stage.peak_rss_bytes / 1e6:,.0f} MB"
        )

    def say(self, line: str) -> None:
        """Report one line."""
        self._report(line)


def peak_rss_bytes() -> int:
    """The largest resident size this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
