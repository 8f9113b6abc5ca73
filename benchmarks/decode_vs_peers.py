"""Decode speed of quatrain against what people use today: same weights, same CPU threads.

Each engine lives in a process of its own that loads once; they take turns, so all see the same
state of the machine. See README.md in this folder.
"""

import argparse
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks._engines import ENGINES
from benchmarks._peer_flags import (
    add_peer_flags,
    choose_engines,
    choose_pythons,
    open_checkpoint,
    prepare_models,
)
from benchmarks._report import Sample, count_same_tokens, sample, summarize, to_text
from benchmarks._turns import take_turns
from benchmarks._worker import Generation, Worker

# 32 tokens that SmolLM2 continues for more than 128, so that no engine has to suppress the end.
PROMPT = (
    "The history of the city of Paris begins with a small settlement on an island in the river "
    "Seine. Over the following two thousand years, the town grew into"
)
WARM_UP_TOKENS = 16
SERVED = tuple(name for name, engine in ENGINES.items() if engine.worker is not None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Every engine's samples behind one prompt, in the order of the rounds; its last generation."""

    samples: dict[str, list[Sample]]
    generations: dict[str, Generation]

    def summarize(self) -> dict[str, Any]:
        """The samples in short, and which tokens came out."""
        lengths = {name: item.prompt_tokens for name, item in self.generations.items()}
        if len(set(lengths.values())) != 1:
            raise RuntimeError(f"the engines do not see the same prompt: {lengths} tokens")
        same = count_same_tokens({n: item.token_ids for n, item in self.generations.items()})
        return {
            "prompt_tokens": next(iter(lengths.values())),
            **summarize(self.samples),
            "same_tokens": same,
        }


def measure(worker: Worker, prompt: str, tokens: int) -> tuple[Sample, Generation]:
    """Take one sample of one engine.

    The first call is not counted: an engine that waited for its turn has gone cold, its threads
    asleep and some of its pages reclaimed, and what that costs says nothing of the engine.
    """
    worker.ask(PROMPT, WARM_UP_TOKENS)
    reply = worker.ask(prompt, tokens)
    made = len(reply.generation.token_ids)
    if made != tokens:
        raise RuntimeError(f"asked for {tokens} tokens, got {made}: choose another prompt")
    return sample(reply), reply.generation


def run(workers: Mapping[str, Worker], prompt: str, tokens: int, rounds: int) -> Outcome:
    """Warm every engine up, then let them take turns; return what they did."""
    measured = take_turns(
        {n: partial(measure, w, prompt, tokens) for n, w in workers.items()}, rounds
    )
    samples = {name: [result for result, _ in items] for name, items in measured.items()}
    return Outcome(samples, {name: items[-1][1] for name, items in measured.items()})


def describe(outcome: Outcome) -> dict[str, Any]:
    """The summary, the raw samples and each engine's last generation."""
    return {
        **outcome.summarize(),
        "samples": {name: [asdict(s) for s in items] for name, items in outcome.samples.items()},
        "generations": {name: asdict(item) for name, item in outcome.generations.items()},
    }


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_peer_flags(parser, SERVED, ("quatrain", "genai"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument(
        "--repeat-prompt", type=int, nargs="+", default=[1], help="how often: longer contexts"
    )
    parser.add_argument("--json", type=Path, help="also write the result here")
    return parser.parse_args()


def main() -> None:
    """Prepare, measure and report."""
    arguments = _parse_arguments()
    pythons = choose_pythons(arguments)
    engines = choose_engines(arguments, pythons)
    models = prepare_models(engines, pythons, open_checkpoint(arguments.checkpoint), arguments)
    setting = {"load_average": os.getloadavg(), "cpus": os.cpu_count(), **vars(arguments)}
    results = []
    with ExitStack() as stack:
        workers = {}
        for name in engines:
            options = [str(models[name]), "--threads", str(arguments.threads)]
            worker = Worker(pythons[name], str(ENGINES[name].worker), options)
            workers[name] = stack.enter_context(worker)
            print(name, *(f"{package} {found}" for package, found in worker.versions.items()))
        for repeats in arguments.repeat_prompt:
            prompt = " ".join([arguments.prompt] * repeats)
            outcome = run(workers, prompt, arguments.tokens, arguments.rounds)
            results.append(describe(outcome))
            tokens = f"{arguments.tokens} tokens behind {results[-1]['prompt_tokens']}"
            print(f"\n{arguments.precision}, {tokens}:")
            print(to_text(results[-1], results[-1]["same_tokens"]), flush=True)
        setting["versions"] = {name: worker.versions for name, worker in workers.items()}
    if arguments.json:
        text = json.dumps({**setting, "contexts": results}, indent=2, default=str)
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
