"""What TensorRT calls back: its logger, its progress monitor and its stream writer.

Each class is made from the TensorRT module at hand, since it has to derive from its classes.
Nothing may be raised out of them: TensorRT would print it and go on.
"""

from collections.abc import Callable
from typing import Any

from quatrain.exporter.engine.log import BuildLog, Severity

__all__ = ["BuildControl", "make_logger", "make_monitor", "make_writer"]


class BuildControl:
    """Lets another thread see how far a build is and stop it."""

    def __init__(self) -> None:
        self.phase = ""
        self.is_cancelled = False

    def cancel(self) -> None:
        """Ask the build to stop at its next step."""
        self.is_cancelled = True


def make_logger(trt: Any, log: BuildLog) -> Any:
    """A logger that collects into `log`; verbose messages are dropped."""
    names: dict[Any, Severity] = {
        trt.ILogger.INTERNAL_ERROR: "error",
        trt.ILogger.ERROR: "error",
        trt.ILogger.WARNING: "warning",
        trt.ILogger.INFO: "info",
    }

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            if severity in names:
                log.add(names[severity], text)

    return Logger()


def make_monitor(trt: Any, control: BuildControl) -> Any:
    """A progress monitor that reports to `control` and obeys it."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            control.phase = phase_name

        def step_complete(self, phase_name: str, step: int) -> bool:
            return not control.is_cancelled

        def phase_finish(self, phase_name: str) -> None:
            pass

    return Monitor()


def make_writer(trt: Any, write: Callable[[bytes], int]) -> Any:
    """A stream writer over `write`, which has to remember its own errors."""

    class Writer(trt.IStreamWriter):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IStreamWriter.__init__(self)

        def write(self, data: bytes) -> int:
            return write(data)

    return Writer()
