"""The compute capability that engines are being built for; TensorRT does not tell its plugins."""

from collections.abc import Iterator
from contextlib import contextmanager

from quatrain.plugins.definition import UnsupportedError

__all__ = ["building_for", "get_build_sm"]

# Of the process, not of a thread: TensorRT builds in threads of its own. One build at a time.
_targets: list[str] = []


@contextmanager
def building_for(sm: str) -> Iterator[None]:
    """While the block lasts, plugins compile their kernels for `sm`, as in "8.6"."""
    _targets.append(sm)
    try:
        yield
    finally:
        _targets.pop()


def get_build_sm() -> str:
    """What `building_for` was given last; `UnsupportedError` outside of it."""
    if not _targets:
        raise UnsupportedError("no GPU was named to compile kernels for: build with quatrain")
    return _targets[-1]
