"""`quatrain compare` on SmolLM2-135M as it is, with two streams, sparse, and with exits.

    python -m benchmarks.compare_smollm2 CHECKPOINT --text wikitext2-test.txt

The last three are upcycled here, untrained: `quatrain expand -n 2`, `quatrain sparsify --method
dense-topk`, and three exits with random routers and adapters. Each is exported in float16 and held
to its checkpoint in a process of its own. Prints what each took and its verdict; exits with 1 where
one fails.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import yaml
from safetensors.numpy import save_file

from benchmarks._synthetic import describe_exits
from quatrain.exporter.checkpoint import Checkpoint, open_checkpoint
from quatrain.exporter.checkpoint.names import expected_tensors
from quatrain.exporter.spec import Exits, Router

EXITS = Exits(
    layers=(8, 15, 22),
    router=Router(num_layers=1, hidden_size=576, intermediate_size=192, temperature=1.0),
    adapter_size=192,
    final_adapter_size=None,
    early_head="embeddings",
)


def main() -> int:
    """Write the four, compare each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--text", type=Path, help="default: the passage that quatrain brings")
    parser.add_argument("--runner", nargs="+", default=["fp32"])
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()
    with TemporaryDirectory(dir=args.checkpoint.resolve().parent) as folder:
        checkpoints = write_variants(args.checkpoint, Path(folder))
        verdicts = [compare(name, path, args) for name, path in checkpoints.items()]
    return 0 if all(verdicts) else 1


def write_variants(dense: Path, folder: Path) -> dict[str, Path]:
    """The dense checkpoint and its three upcycles, by name; weights are linked."""
    variants = {name: folder / name for name in ("streams", "sparse", "exits")}
    run("expand", dense, "-n", "2", "-o", variants["streams"])
    run("sparsify", dense, "--method", "dense-topk", "-o", variants["sparse"])
    add_exits(open_checkpoint(dense), dense, variants["exits"])
    return {"dense": dense, **variants}


def add_exits(checkpoint: Checkpoint, source: Path, target: Path) -> None:
    """An N-vium checkpoint in its authors' layout, over the weights of a dense tied one."""
    target.mkdir()
    for file in source.glob("*.json"):
        shutil.copyfile(file, target / file.name)
    weight_map = {}
    for tensor in checkpoint.tensors.values():
        file = target / f"dense-{tensor.file.name}"  # `model.safetensors` alone would be the model
        if not file.exists():
            os.link(tensor.file, file)
        weight_map[tensor.stored_name] = file.name
    rng = np.random.default_rng(0)
    shapes = expected_tensors(replace(checkpoint.spec, exits=EXITS))
    added = {
        name: draw(name, shape, rng)
        for name, shape in shapes.items()
        if name not in checkpoint.tensors
    }
    save_file(added, target / "exits.safetensors")
    weight_map |= dict.fromkeys(added, "exits.safetensors")
    index = {"metadata": {}, "weight_map": weight_map}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    settings = describe_exits(EXITS)
    settings["tying"] = {"tie_final_to_embeddings": True, "tie_early_to_embeddings": True}
    (target / ".hydra").mkdir()
    (target / ".hydra" / "config.yaml").write_text(yaml.safe_dump(settings))


def draw(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Ones for a norm, zeros for a bias, else numbers that keep the size of what they multiply."""
    if "norm" in name:
        return np.ones(shape, np.float16)
    scale = 0.0 if name.endswith("bias") else shape[-1] ** -0.5
    return (rng.standard_normal(shape) * scale).astype(np.float16)


def compare(name: str, checkpoint: Path, args: argparse.Namespace) -> bool:
    """Export and compare one; says what it took."""
    with TemporaryDirectory(dir=args.checkpoint.resolve().parent) as folder:
        bundle = Path(folder) / "bundle"
        run("export", checkpoint, "-o", bundle, "--no-verify", "--dtype", "float16")
        flags = ["--runner", *args.runner, "--max-tokens", str(args.max_tokens)]
        if args.text is not None:
            flags += ["--text", str(args.text)]
        start, used = time.perf_counter(), measure_cpu()
        verdict = json.loads(run("compare", bundle, checkpoint, *flags, "--json", check=False))
        wall, cpu = time.perf_counter() - start, measure_cpu() - used
    outcome = "passed" if verdict["passed"] else "FAILED"
    total = len(verdict["checks"])
    logits = max(c["value"] for c in verdict["checks"] if c["name"].endswith("logits"))
    print(
        f"{name:8} {outcome}, {total} checks, logits within {logits:.1e}:"
        f" {wall:5.1f} s, {cpu:5.1f} s of CPU",
        flush=True,
    )
    return bool(verdict["passed"])


def measure_cpu() -> float:
    """Seconds that children have used so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(*arguments: object, check: bool = True) -> str:
    """What a quatrain command prints."""
    command = [sys.executable, "-m", "quatrain.exporter.cli", *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=check).stdout


if __name__ == "__main__":
    sys.exit(main())
