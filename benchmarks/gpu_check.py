"""Every kernel on this machine's NVIDIA GPU: is it right, and is it faster than plain PyTorch?

    make gpu-check
    PYTHONPATH=src python -m benchmarks.gpu_check --json build/gpu-check.json

Needs PyTorch with CUDA, Triton and NumPy; where TensorRT and what the exporter needs are installed
too, the sample models run as engines with plugins. Exit code 0: all is right; 1: something is not;
2: nothing was run, since there is no GPU to run it on.

`--device cpu` runs a few tiny cases in Triton's interpreter (TRITON_INTERPRET=1). It tests this
script and says nothing of a GPU.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

__all__ = ["main"]

_MIN_SM = (8, 0)
_TIME_LIMIT_S = 420.0
_ENGINES_S = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, print the table, write the JSON; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the numbers")
    args = parser.parse_args(arguments)
    obstacle = _find_obstacle(args.device)
    if obstacle is not None:
        print(f"gpu-check: {obstacle}. Nothing was run.", file=sys.stderr)
        return 2
    report = _check(args.device)
    print(report["table"])
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    return 0 if report["is_right"] else 1


def _find_obstacle(device: str) -> str | None:
    """Why the kernels cannot run here, or None."""
    try:
        import numpy  # noqa: F401
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        return f"{error.name} is not installed; this needs PyTorch with CUDA, Triton and NumPy"
    interprets = os.environ.get("TRITON_INTERPRET") == "1"
    if device == "cpu":
        return None if interprets else "--device cpu needs TRITON_INTERPRET=1"
    if interprets:
        return "TRITON_INTERPRET is set, under which no kernel runs on a GPU"
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"PyTorch {torch.__version__} finds no NVIDIA GPU"
    capability = torch.cuda.get_device_capability()
    if capability < _MIN_SM:
        return f"this GPU has SM {capability[0]}.{capability[1]}; the kernels need 8.0 or newer"
    return None


def _check(device: str) -> dict[str, Any]:
    import torch
    import triton

    from benchmarks._gpu_rows import check_right, describe_device
    from benchmarks._gpu_table import write_table

    start = time.monotonic()
    report: dict[str, Any] = {
        "device": describe_device(device),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "right": [asdict(row) for row in check_right(device)],
        "timed": [],
        "not_run": [],
        "engines": [],
    }
    if device == "cuda":
        _measure(report, start)
    else:
        report["not_run"] = ["timings and engines: this is Triton's interpreter on the CPU"]
    report["seconds"] = round(time.monotonic() - start, 1)
    report["is_right"] = all(
        row["is_right"] for part in ("right", "timed", "engines") for row in report[part]
    )
    report["table"] = write_table(report)
    return report


def _measure(report: dict[str, Any], start: float) -> None:
    """Add what only a GPU can say."""
    import torch

    from benchmarks._gpu_engines import find_engine_target
    from benchmarks._gpu_rows import measure_cases
    from benchmarks._gpu_timing import GpuTimer
    from benchmarks._kernel_cases import list_realistic_cases

    major, minor = torch.cuda.get_device_capability()
    target, reason = find_engine_target(f"{major}.{minor}")
    deadline = start + _TIME_LIMIT_S - (_ENGINES_S if target is not None else 0)
    report |= measure_cases(list_realistic_cases(), GpuTimer(), deadline=deadline)
    report["right"] += report.pop("failed")
    if target is None:
        report["not_run"].append(f"engines: {reason}")
    else:
        _run_engines(report, target, max(30.0, start + _TIME_LIMIT_S - time.monotonic()))


def _run_engines(report: dict[str, Any], target: str, timeout_s: float) -> None:
    from benchmarks._gpu_engines import check_engines

    try:
        results = check_engines(target, timeout_s)
    except TimeoutError as error:
        report["not_run"].append(f"engines: {error}")
    except RuntimeError as error:
        report["engines"] = [{"model": "engines", "is_right": False, "error": str(error)}]
    else:
        report["engines"] = [asdict(result) | {"is_right": result.is_right} for result in results]


if __name__ == "__main__":
    sys.exit(main())
