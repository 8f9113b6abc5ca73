"""The sample models as engines with plugins on this GPU, against ONNX Runtime on the CPU.

    python -m benchmarks._gpu_engines TARGET

`gpu_check.py` runs it in a process of its own. Prints one JSON object a line, one a model.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["EngineResult", "check_engines", "find_engine_target"]

_SAMPLES = Path(__file__).resolve().parents[1] / "samples" / "checkpoints"
_MODELS = ("topics-hidden-decoding", "topics-bank-topk", "topics-nvium")
_TENSORRT = ("tensorrt_rtx", "tensorrt")
_OTHERS = ("onnx", "onnx_ir", "onnxscript", "onnxruntime", "tokenizers", "msgspec", "cuda")
_NUM_CHARACTERS = 2000
# The engines compute in bfloat16, ONNX Runtime in float32.
_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One model: the perplexity of a text by either, and the plugin layers of its engines."""

    model: str
    tensorrt: float
    onnxruntime: float
    plugins: dict[str, int]

    @property
    def is_right(self) -> bool:
        """Whether the two agree, and there was a plugin to agree with."""
        near = abs(self.tensorrt / self.onnxruntime - 1) <= _TOLERANCE
        return near and sum(self.plugins.values()) > 0


def find_engine_target(sm: str) -> tuple[str | None, str]:
    """The target to build for on a GPU of that compute capability, or None and why not."""
    if not any(map(_is_installed, _TENSORRT)):
        return None, "TensorRT is not installed"
    missing = [name for name in _OTHERS if not _is_installed(name)]
    if missing:
        return None, f"not installed: {', '.join(missing)}"
    from quatrain.exporter.targets import TARGETS

    for target in TARGETS:
        if target.sm == sm:
            return target.name, ""
    return None, f"no target has SM {sm}"


def check_engines(target: str, timeout_s: float) -> list[EngineResult]:
    """All sample models.

    Raises `RuntimeError` with the last words of the process if it fails, `TimeoutError` if it
    takes too long.
    """
    command = [sys.executable, "-m", "benchmarks._gpu_engines", target]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"not ready after {timeout_s:.0f} s") from error
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-2000:] or f"exit code {done.returncode}")
    return [EngineResult(**json.loads(line)) for line in done.stdout.splitlines()]


def main(target: str) -> None:
    """Build, run and print."""
    text = (_SAMPLES / "heldout.txt").read_text("utf-8")[:_NUM_CHARACTERS]
    for model in _MODELS:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(asdict(_check_model(model, target, text, Path(folder)))), flush=True)


def _check_model(model: str, target: str, text: str, folder: Path) -> EngineResult:
    from quatrain.exporter import export_checkpoint
    from quatrain.runtime import LLM, perplexity

    bundle = folder / "bundle"
    export_checkpoint(_SAMPLES / model, bundle, targets=[target], plugins=["on"])
    found = {}
    plugins: dict[str, int] = {}
    for backend in ("tensorrt", "onnxruntime"):
        with LLM(bundle, backend=backend) as llm:
            found[backend] = perplexity(llm, text).perplexity
            plugins = _count_plugins(llm.manifest)
    return EngineResult(model, found["tensorrt"], found["onnxruntime"], plugins)


def _count_plugins(manifest: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for engine in manifest.engines:
        for name, number in engine.plugins.items():
            counts[name] = counts.get(name, 0) + number
    return counts


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


if __name__ == "__main__":
    main(*sys.argv[1:])
