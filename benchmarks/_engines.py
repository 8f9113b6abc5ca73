"""The engines that a benchmark may compare: how each exports a checkpoint, and who serves it."""

import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ENGINES", "ROOT", "Engine", "export_model", "find_obstacle"]

ROOT = Path(__file__).resolve().parents[1]

Export = Callable[[Path, Path, str], list[str]]
"""What to tell Python to export a checkpoint, to where, in which precision."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine.

    Args:
        worker: The module that serves it; None where it is only asked to export.
        needs: The module that must be there to run it.
        install: What pip calls it.
        export: None where it runs a checkpoint as it is.
        precisions: What it can be asked for.
    """

    worker: str | None
    needs: str
    install: str
    export: Export | None
    precisions: tuple[str, ...] = ("fp32",)


def find_obstacle(engine: Engine, python: str, precision: str) -> str | None:
    """Say why an engine cannot take part, None if it can."""
    if precision not in engine.precisions:
        return f"it has no {precision}"
    code = f"import importlib; importlib.import_module({engine.needs!r})"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"no Python there: {error}"
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        return f"{reason} ({python}; to install: pip install {engine.install})"
    return None


def export_model(engine: Engine, python: str, checkpoint: Path, out: Path, precision: str) -> Path:
    """Return the folder that an engine's worker loads; export it first unless it is there."""
    if engine.export is None:
        return checkpoint.resolve()
    if out.exists():
        return out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        staging = Path(temporary).resolve() / out.name
        command = [python, *engine.export(checkpoint.resolve(), staging, precision)]
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            raise RuntimeError(f"{command} failed:\n{done.stdout[-4000:]}")
        staging.rename(out)
    return out.resolve()


def _export_quatrain(checkpoint: Path, out: Path, precision: str) -> list[str]:
    command = ["-m", "quatrain.exporter.cli", "export", str(checkpoint), "-o", str(out)]
    command += ["--no-verify", "--no-self-test"]
    return command + (["--quantize", "int4"] if precision == "int4" else [])


def _export_genai(checkpoint: Path, out: Path, precision: str) -> list[str]:
    folder = str(checkpoint)  # of the input, and of a cache that it has no use for
    command = ["-m", "onnxruntime_genai.models.builder", "-m", folder, "-i", folder, "-c", folder]
    return [*command, "-o", str(out), "-p", precision, "-e", "cpu"]


def _export_optimum(checkpoint: Path, out: Path, _: str) -> list[str]:
    """Not by its command line, which always compares with the checkpoint afterwards."""
    setting = "task='text-generation-with-past', dtype='fp32', do_validation=False"
    call = f"main_export({str(checkpoint)!r}, {str(out)!r}, {setting})"
    return ["-c", f"from optimum.exporters.onnx import main_export; {call}"]


def _export_mobius(checkpoint: Path, out: Path, _: str) -> list[str]:
    command = ["-m", "mobius", "build", "--config", str(checkpoint)]
    return [*command, "--dtype", "f16", "--static-cache", str(out)]


def _export_llama_cpp(checkpoint: Path, out: Path, precision: str) -> list[str]:
    command = ["-m", "benchmarks._llama_cpp_model", str(checkpoint), str(out)]
    return [*command, "--precision", precision]


_BOTH = ("fp32", "int4")
ENGINES = {
    "quatrain": Engine("benchmarks._quatrain", "quatrain", "quatrain", _export_quatrain, _BOTH),
    "genai": Engine(
        "benchmarks._genai", "onnxruntime_genai", "onnxruntime-genai", _export_genai, _BOTH
    ),
    "transformers": Engine("benchmarks._transformers", "transformers", "transformers torch", None),
    "optimum": Engine(
        "benchmarks._optimum",
        "optimum.onnxruntime",
        "optimum-onnx[onnxruntime]",
        _export_optimum,
    ),
    "mobius": Engine(None, "mobius", "mobius-onnx", _export_mobius),
    "llama.cpp": Engine(
        "benchmarks._llama_cpp",
        "llama_cpp",
        "llama-cpp-python gguf safetensors",
        _export_llama_cpp,
        _BOTH,
    ),
}
