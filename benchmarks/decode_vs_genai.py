"""Decode speed of quatrain against onnxruntime-genai: same weights, same CPU threads.

Each engine lives in a process of its own that loads once; the two take turns, so both see the
same state of the machine. See README.md in this folder.
"""

import argparse
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from benchmarks._genai import export_genai
from benchmarks._report import Sample, sample, summarize, to_text
from benchmarks._worker import Generation, Worker

BUILD = Path(__file__).resolve().parents[1] / "build" / "smollm2"
# 32 tokens that SmolLM2 continues for more than 128, so that no engine has to suppress the end.
PROMPT = (
    "The history of the city of Paris begins with a small settlement on an island in the river "
    "Seine. Over the following two thousand years, the town grew into"
)
ENGINES = ("quatrain", "genai")
WARM_UP_TOKENS = 32


def prepare(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Export what is missing and return the worker command of every requested engine."""
    threads = ["--threads", str(arguments.threads)]
    checkpoint = _checkpoint(arguments.checkpoint)
    commands: dict[str, list[str]] = {}
    if "quatrain" in arguments.engines:
        bundle = _export_quatrain(checkpoint, arguments.bundle, arguments.precision)
        commands["quatrain"] = ["benchmarks._quatrain_worker", str(bundle.resolve()), *threads]
    if "genai" in arguments.engines:
        folder = arguments.peer_model or BUILD / f"genai-{arguments.precision}"
        model = export_genai(checkpoint, folder, arguments.precision)
        commands["genai"] = ["benchmarks._genai", str(model.resolve()), *threads]
    return commands


def _checkpoint(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    from samples.smollm2 import convert_smollm2

    return convert_smollm2(folder)


def _export_quatrain(checkpoint: Path, bundle: Path | None, precision: str) -> Path:
    bundle = bundle or BUILD / f"bundle-{precision}"
    if not bundle.exists():
        from quatrain.exporter import export_checkpoint

        quantize: Literal["int4"] | None = "int4" if precision == "int4" else None
        export_checkpoint(checkpoint, bundle, dtype="float32", quantize=quantize, verify=False)
    return bundle


@dataclass(frozen=True, slots=True)
class Outcome:
    """Every engine's samples, in the order of the rounds, and its last generation."""

    samples: dict[str, list[Sample]]
    generations: dict[str, Generation]


def measure(worker: Worker, prompt: str, tokens: int) -> tuple[Sample, Generation]:
    """Take one sample of one engine.

    The first call is not counted: an engine that waited for its turn has gone cold, its threads
    asleep and some of its pages reclaimed, and what that costs says nothing of the engine.
    """
    worker.ask(prompt, WARM_UP_TOKENS)
    first, full = worker.ask(prompt, 1), worker.ask(prompt, tokens)
    if len(full.generation.token_ids) != tokens:
        made = len(full.generation.token_ids)
        raise RuntimeError(f"asked for {tokens} tokens, got {made}: choose another prompt")
    return sample(first, full), full.generation


def run(commands: Mapping[str, list[str]], prompt: str, tokens: int, rounds: int) -> Outcome:
    """Warm every engine up, then let them take turns; return what they did."""
    samples: dict[str, list[Sample]] = {name: [] for name in commands}
    last: dict[str, Generation] = {}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(module, arguments))
            for name, (module, *arguments) in commands.items()
        }
        for worker in workers.values():
            measure(worker, prompt, tokens)
        for _ in range(rounds):
            for name, worker in workers.items():
                result, last[name] = measure(worker, prompt, tokens)
                samples[name].append(result)
    return Outcome(samples, last)


def same_tokens(generations: Mapping[str, Generation]) -> int | None:
    """Return how many leading tokens two engines agree on, None for a single engine."""
    if len(generations) != 2:
        return None
    left, right = (item.token_ids for item in generations.values())
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def setting(arguments: argparse.Namespace) -> dict[str, Any]:
    """Describe the run: versions, machine load and arguments."""
    return {
        "versions": {name: _version(name) for name in ("onnxruntime", "onnxruntime-genai")},
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "threads": arguments.threads,
        "tokens": arguments.tokens,
        "rounds": arguments.rounds,
        "prompt": arguments.prompt,
    }


def to_json(outcome: Outcome) -> dict[str, Any]:
    """Return the raw samples and each engine's last generation, its `stats` included."""
    return {
        "samples": {name: [asdict(s) for s in items] for name, items in outcome.samples.items()},
        "generations": {name: asdict(item) for name, item in outcome.generations.items()},
    }


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkpoint", type=Path, default=BUILD / "checkpoint")
    parser.add_argument("--precision", choices=("fp32", "int4"), default="fp32")
    parser.add_argument("--bundle", type=Path, help="default: by precision, exported if need be")
    parser.add_argument("--peer-model", type=Path, help="default: likewise")
    parser.add_argument("--repeat-prompt", type=int, default=1, help="how often: a longer context")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--json", type=Path, help="also write the result here")
    return parser.parse_args()


def main() -> None:
    """Prepare, measure and report."""
    arguments = _arguments()
    commands = prepare(arguments)
    described = setting(arguments)
    prompt = " ".join([arguments.prompt] * arguments.repeat_prompt)
    outcome = run(commands, prompt, arguments.tokens, arguments.rounds)
    summary = summarize(outcome.samples)
    agreed = same_tokens(outcome.generations)
    print(to_text(summary))
    if agreed is not None:
        print(f"the engines agree on the first {agreed} of {arguments.tokens} tokens")
    if arguments.json:
        result = {**described, **summary, "same_tokens": agreed, **to_json(outcome)}
        arguments.json.write_text(json.dumps(result, indent=2, default=str) + "\n")


if __name__ == "__main__":
    main()
