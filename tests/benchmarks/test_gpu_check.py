"""`gpu_check.py` as far as a CPU goes: Triton's interpreter, tiny sizes, a stand-in clock."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.plugins.interpreter_repair import repair_bf16_dot

from benchmarks import _gpu_rows, gpu_check
from benchmarks._gpu_cases import list_right_cases
from benchmarks._gpu_rows import measure_cases
from benchmarks._gpu_table import write_table
from benchmarks._kernel_alternatives import list_alternatives
from benchmarks._kernel_cases import (
    AttentionCase,
    Case,
    CountedDefinition,
    FeedForwardCase,
    RouterCase,
    make_definition,
)
from benchmarks._kernel_inputs import make_inputs, run_reference
from quatrain.plugins.definition import TensorFacts

repair_bf16_dot()

DECODE = AttentionCase("decode", 4, 2, 16, live=40, capacity=48)
PREFILL = AttentionCase("prefill", 4, 2, 16, live=20, capacity=48, tokens=20)
SEVERAL = AttentionCase("several", 4, 2, 16, live=20, capacity=48, tokens=3, window=6)
NETWORK = FeedForwardCase("network", rows=1, hidden=32, inner=128, rank=16)
ROUTER = RouterCase("router", rows=2, hidden=40, inner=24, router=36)


class Clock:
    """In place of `GpuTimer`: runs each call, and says that ours took half the time."""

    start_seconds = 1e-6
    copy_bytes_per_s = 1e12

    def __init__(self) -> None:
        self._num_calls = 0

    def measure_seconds(self, call: Callable[[], object]) -> float:
        call()
        self._num_calls += 1
        return 1e-6 if self._num_calls == 1 else 2e-6


def test_all_kernels_are_right_in_the_interpreter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "new" / "check.json"
    assert gpu_check.main(["--device", "cpu", "--json", str(file)]) == 0
    report = json.loads(file.read_text("utf-8"))
    assert {row["operator"] for row in report["right"]} == {
        "StreamFactorizedAttention",
        "BankTopKFeedForward",
        "ExitRouter",
    }
    assert report["timed"] == report["engines"] == []
    said = capsys.readouterr().out
    assert "no GPU" in said and "Not run: timings and engines" in said


def test_a_wrong_kernel_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def run_wrong(case: Case, inputs: list[torch.Tensor]) -> list[np.ndarray]:
        outputs = run_reference(case, inputs)
        outputs[0].flat[0] += 0.5 * np.abs(outputs[0]).max() * (case.name == "ties")
        return outputs

    monkeypatch.setattr(_gpu_rows, "run_reference", run_wrong)
    assert gpu_check.main(["--device", "cpu"]) == 1
    said = capsys.readouterr().out
    assert "1/2" in said and "WRONG" in said and "SOMETHING IS WRONG" in said


def test_a_kernel_that_fails_is_wrong_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    def fail(case: Case) -> CountedDefinition:
        if case.operator == "ExitRouter":
            raise RuntimeError("it does not compile")
        return make_definition(case)

    monkeypatch.setattr(_gpu_rows, "make_definition", fail)
    file = tmp_path / "check.json"
    assert gpu_check.main(["--device", "cpu", "--json", str(file)]) == 1
    said = capsys.readouterr().out
    assert "0/2" in said and "RuntimeError: it does not compile" in said and "3/3" in said
    assert json.loads(file.read_text("utf-8"))["right"][-1]["error"] is None


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_an_output_that_is_not_a_number_is_wrong(wrong: float):
    found = torch.tensor([wrong, 1])
    assert _gpu_rows._find_largest_error([found], [np.ones(2, np.float32)]) is None
    assert _gpu_rows._find_largest_error([torch.ones(2)], [np.ones(2, np.float32)]) == 0


def test_a_timed_call_that_fails_or_has_no_room_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch,
):
    problems = iter([torch.cuda.OutOfMemoryError("full"), RuntimeError("a fault")])

    def fail(*_: object) -> None:
        raise next(problems)

    monkeypatch.setattr(_gpu_rows, "prepare_call", fail)
    until = time.monotonic() + 60
    report = measure_cases([DECODE, ROUTER], Clock(), deadline=until, device="cpu")
    assert report["not_run"] == ["StreamFactorizedAttention decode: not enough memory"]
    (row,) = report["failed"]
    assert row["failure"] == "RuntimeError: a fault" and not row["is_right"]


def test_without_a_gpu_it_says_so_and_fails(root: Path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check"],
        cwd=root,
        env=environment | {"PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert "Nothing was run" in done.stderr


def test_it_needs_only_torch_triton_and_numpy(root: Path):
    """Nothing else of what quatrain depends on is loaded, nor missed."""
    others = ["msgspec", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "tokenizers"]
    blocked = f"import sys; sys.modules.update(dict.fromkeys({others}))"
    code = f"{blocked}; from benchmarks.gpu_check import main; sys.exit(main(['--device', 'cpu']))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=os.environ | {"PYTHONPATH": "src", "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["numpy", "torch", "triton"])
def test_what_is_not_installed_is_named(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, module, None)
    assert gpu_check.main([]) == 2
    assert f"{module} is not installed; this needs PyTorch" in capsys.readouterr().err


def test_the_interpreter_is_not_taken_for_a_gpu(capsys: pytest.CaptureFixture[str]):
    assert gpu_check.main([]) == 2
    assert "TRITON_INTERPRET is set" in capsys.readouterr().err


@pytest.mark.parametrize("case", [DECODE, PREFILL, SEVERAL, ROUTER], ids=lambda case: case.name)
def test_the_alternatives_compute_the_same(case: Case):
    inputs = make_inputs(case, "float32")
    expected = run_reference(case, inputs)
    for name, run in list_alternatives(case, inputs).items():
        for a, b in zip(run(), expected, strict=True):
            np.testing.assert_allclose(a.numpy(), b, atol=2e-5, err_msg=name)


def test_the_dense_network_is_that_of_all_channels():
    case = FeedForwardCase("all", 3, 32, 128, 16, bank_size=64, top_k=64, gate_mode="silu")
    inputs = make_inputs(case, "float32")
    for name, run in list_alternatives(case, inputs).items():
        expected = run_reference(case, inputs)[0]
        np.testing.assert_allclose(run()[0].numpy(), expected, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", [DECODE, NETWORK, ROUTER], ids=lambda case: case.name)
def test_a_case_is_measured(case: Case):
    report = measure_cases([case], Clock(), deadline=time.monotonic() + 60, device="cpu")
    (row,) = report["timed"]
    assert row["speedup"] == 2.0 and row["microseconds"] == 1.0 and row["is_right"]
    dtypes, shapes = zip(*case.list_inputs("bfloat16"), strict=True)
    work = make_definition(case).count_work(dtypes, shapes)
    assert row["gb_per_s"] == pytest.approx(work.bytes_moved / 1e-6 / 1e9)
    assert row["share_of_copy"] == pytest.approx(work.bytes_moved / 1e-6 / 1e12)
    assert row["goal"] is None


def test_what_there_is_no_time_for_is_named():
    report = measure_cases([DECODE], Clock(), deadline=time.monotonic() - 1, device="cpu")
    assert report["timed"] == []
    assert report["not_run"] == ["StreamFactorizedAttention decode: no time left"]


def test_goals():
    network = FeedForwardCase("8B", rows=1, hidden=4096, inner=12288, rank=448)
    assert _gpu_rows._judge(network, 2.6, 0.1) == ("2.5 x dense at 4 x sparsity", True)
    assert _gpu_rows._judge(network, 2.4, 0.9)[1] is False
    long = AttentionCase("8B", 32, 8, 128, live=32768, capacity=32768)
    assert _gpu_rows._judge(long, 0.5, 0.81) == ("80% of copy bandwidth", True)
    assert _gpu_rows._judge(long, 5.0, 0.79)[1] is False


def test_the_table_has_a_line_for_everything():
    report = measure_cases([DECODE, NETWORK], Clock(), deadline=time.monotonic() + 60, device="cpu")
    report["timed"][1] |= {"goal": "2.5 x dense", "meets_goal": False}
    report |= {
        "device": {"name": "some GPU"},
        "torch": "1",
        "triton": "2",
        "right": [],
        "engines": [
            {"model": "a", "tensorrt": 5.0, "onnxruntime": 5.1, "plugins": {"ExitRouter": 3}}
            | {"is_right": True},
            {"model": "b", "is_right": False, "error": "no memory"},
        ],
        "seconds": 3.0,
        "is_right": False,
    }
    table = write_table(report)
    for words in ("some GPU", "1000 GB/s", "2.00 x", "2.5 x dense: MISSED", "3 ExitRouter"):
        assert words in table
    assert "Engines: no memory" in table and "SOMETHING IS WRONG" in table


def test_there_is_a_kernel_for_every_case():
    for case, dtype in list_right_cases(tiny=False):
        facts = [TensorFacts(d, shape, shape) for d, shape in case.list_inputs(dtype)]
        make_definition(case).check(facts)
