"""What the doctor says of this machine, and of machines with a GPU."""

import dataclasses
import json
import subprocess
import sys

import pytest

from quatrain.exporter import doctor
from quatrain.exporter.doctor import DoctorReport, TargetReport, examine_machine
from quatrain.exporter.engine import choice
from quatrain.exporter.local_gpu import LocalGpu, LocalGpus, find_gpus

A6000 = LocalGpus((LocalGpu(0, "NVIDIA RTX A6000", "8.6", 48 << 30),), "570.1", "12.8")
A100 = LocalGpus((LocalGpu(0, "NVIDIA A100-SXM4-80GB", "8.0", 80 << 30),), "570.1", "12.8")


def targets_of(report: DoctorReport) -> dict[str, TargetReport]:
    return {target.name: target for target in report.targets}


@pytest.fixture
def machine(monkeypatch):
    """Says which GPUs and which TensorRTs there are."""

    def pretend(local: LocalGpus, versions: dict[str, str]) -> None:
        monkeypatch.setattr(doctor, "find_gpus", lambda: local)
        monkeypatch.setattr(doctor, "_find_version", lambda name: "1.0")
        for module in (doctor, choice):
            monkeypatch.setattr(module, "find_installed_version", versions.get)

    return pretend


def test_the_report_of_this_machine_is_json():
    report = examine_machine()

    restored = json.loads(json.dumps(dataclasses.asdict(report)))
    assert restored["python"] == sys.version.split()[0]
    packages = {package["name"]: package["version"] for package in restored["packages"]}
    assert {"numpy", "onnxruntime", "onnx", "tensorrt-rtx", "tensorrt", "cuda-python"} <= set(
        packages
    )
    assert packages["numpy"] is not None


def test_every_gpu_or_a_reason_for_none():
    local = find_gpus()

    assert bool(local.gpus) == (local.problem is None)


def test_examining_imports_nothing_heavy():
    heavy = {"onnx", "onnxruntime", "onnxscript", "polygraphy", "tensorrt_rtx", "torch"}
    code = (
        "import sys\n"
        "from quatrain.exporter.doctor import examine_machine\n"
        "examine_machine()\n"
        f"print(sorted({heavy!r} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_without_a_gpu_tensorrt_rtx_builds_for_all_and_nothing_runs(machine):
    machine(LocalGpus(problem="no driver"), {"tensorrt-rtx": "1.7"})

    report = examine_machine()

    assert all(target.can_build for target in report.targets)
    assert {target.flavour for target in report.targets} == {"tensorrt-rtx"}
    assert {target.run_problem for target in report.targets} == {"no driver"}
    notes = {target.name: target.note for target in report.targets}
    assert "support matrix" in (notes["a100"] or "")
    assert notes["a6000"] is None


def test_on_an_a6000_only_its_compute_capability_runs(machine):
    machine(A6000, {"tensorrt-rtx": "1.7"})

    targets = targets_of(examine_machine())

    assert targets["a6000"].can_run
    assert targets["rtx3090"].can_run
    assert (
        targets["a100"].run_problem
        == "needs compute capability 8.0; here is NVIDIA RTX A6000 (8.6)"
    )


def test_on_an_a100_classic_tensorrt_goes_first(machine):
    machine(A100, {"tensorrt-rtx": "1.7", "tensorrt": "10.16"})

    targets = targets_of(examine_machine())

    assert (targets["a100"].flavour, targets["a100"].note) == ("tensorrt", None)
    assert targets["a6000"].flavour == "tensorrt-rtx"


def test_with_no_tensorrt_the_way_to_one_is_named(machine):
    machine(A6000, {})

    target = targets_of(examine_machine())["a6000"]

    assert not target.can_build
    assert "tensorrt-rtx: not installed" in (target.build_problem or "")
    assert "quatrain[rtx]" in (target.build_fix or "")
    assert "no TensorRT is installed" in (target.run_problem or "")
