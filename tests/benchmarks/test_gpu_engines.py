"""The engines of `gpu_check.py`, as far as a machine without a GPU goes."""

import pytest

from benchmarks import _gpu_engines
from benchmarks._gpu_engines import EngineResult, check_engines, find_engine_target


@pytest.mark.parametrize(
    ("missing", "sm", "expected"),
    [
        ((), "8.0", ("a100", "")),
        ((), "8.6", ("a6000", "")),
        ((), "9.0", (None, "no target has SM 9.0")),
        (("tensorrt_rtx",), "8.0", ("a100", "")),
        (("tensorrt_rtx", "tensorrt"), "8.0", (None, "TensorRT is not installed")),
        (("onnx_ir", "cuda"), "8.0", (None, "not installed: onnx_ir, cuda")),
    ],
)
def test_engines_are_built_where_they_can_run(
    monkeypatch: pytest.MonkeyPatch,
    missing: tuple[str, ...],
    sm: str,
    expected: tuple[str | None, str],
):
    monkeypatch.setattr(_gpu_engines, "_is_installed", lambda name: name not in missing)
    assert find_engine_target(sm) == expected


def test_what_fails_in_the_other_process_is_said():
    with pytest.raises(RuntimeError, match="no target of that name"):
        check_engines("nothing", timeout_s=300)


def test_what_takes_too_long_is_given_up():
    with pytest.raises(TimeoutError, match="not ready after 0 s"):
        check_engines("nothing", timeout_s=0.01)


@pytest.mark.parametrize(
    ("tensorrt", "plugins", "is_right"),
    [(5.05, {"ExitRouter": 2}, True), (5.2, {"ExitRouter": 2}, False), (5.0, {}, False)],
)
def test_near_the_cpu_and_with_plugins_is_right(
    tensorrt: float, plugins: dict[str, int], is_right: bool
):
    assert EngineResult("model", tensorrt, 5.0, plugins).is_right == is_right
