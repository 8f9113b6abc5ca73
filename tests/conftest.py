"""Paths every test may need, the golden bundle, exported once, and Triton's interpreter."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before anything imports triton, which reads it only once: kernels run in its interpreter.
os.environ["TRITON_INTERPRET"] = "1"
# Silences a warning of triton 3.9 about its own default.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

# Each of several pytest processes keeps to a core of its own, and so does what it starts: threads
# of two that share cores wait for each other, for minutes where one is enough.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
if _WORKER and hasattr(os, "sched_setaffinity"):
    _CORES = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {_CORES[int(_WORKER.removeprefix("gw")) % len(_CORES)]})
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Started in the background of a shell, the tests and all they start would ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def exports_are_compared_on_request() -> Iterator[None]:
    """Comparing a tiny model takes several times as long as exporting it: tests of that ask for it
    (`verify=True`), and one holds the default to what it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quatrain.exporter.options._VERIFY_MAX_BYTES", 0)
        yield


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def nvium_checkpoint() -> Path:
    """The golden N-vium checkpoint: random weights, no tokenizer."""
    return ROOT / "tests" / "golden" / "nvium" / "checkpoint"


@pytest.fixture(scope="session")
def nvium_bundle(nvium_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden checkpoint as a bundle, without engines. Copy it before changing anything."""
    from quatrain.exporter import export_checkpoint

    bundle = tmp_path_factory.mktemp("nvium") / "bundle"
    export_checkpoint(nvium_checkpoint, bundle, weights="copy")
    return bundle
