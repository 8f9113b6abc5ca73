"""Decoding with latent drafts against plain decoding of the same bundle, batch 1, on a CPU.

    python -m benchmarks.drafting
    python -m benchmarks.drafting --checkpoint FOLDER --text FILE

`easy` continues passages of the text greedily; `adverse` draws at temperature 2 behind random
tokens, where a drafter is mostly wrong. Drafted and plain runs take turns, round by round, over one
loaded model; a ratio is taken within a round.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from quatrain.exporter import export_checkpoint
from quatrain.runtime import LLM, SamplingParams

SAMPLES = Path(__file__).parents[1] / "samples" / "checkpoints"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=SAMPLES / "topics-hilp")
    parser.add_argument("--text", type=Path, default=SAMPLES / "heldout.txt")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        export_checkpoint(args.checkpoint, bundle, drafter=True, self_test=False)
        options = {"backend": "onnxruntime", "threads": args.threads}
        with (
            LLM(bundle, draft="auto", **options) as drafted,
            LLM(bundle, draft=0, **options) as plain,
        ):
            for name, prompts, params in _make_cases(drafted, args):
                _report(name, drafted, plain, prompts, params, args.rounds)


def _make_cases(
    llm: LLM, args: argparse.Namespace
) -> list[tuple[str, list[list[int]], SamplingParams]]:
    assert llm.tokenizer is not None
    ids = llm.tokenizer.encode(args.text.read_text(encoding="utf-8"))
    rng = np.random.default_rng(0)
    starts = rng.integers(0, len(ids) - 64, args.prompts)
    easy = [list(ids[start : start + 64]) for start in starts.tolist()]
    vocab_size = llm.manifest.vocab_size
    adverse = [rng.integers(0, vocab_size, 64).tolist() for _ in range(args.prompts)]
    greedy = SamplingParams(temperature=0.0, max_tokens=args.tokens, ignore_eos=True)
    hot = SamplingParams(temperature=2.0, max_tokens=args.tokens, ignore_eos=True)
    return [("easy", easy, greedy), ("adverse", adverse, hot)]


def _report(
    name: str,
    drafted: LLM,
    plain: LLM,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    rounds: int,
) -> None:
    rates: dict[str, list[float]] = {"drafted": [], "plain": []}
    steps: list[float] = []
    for round_index in range(rounds + 1):
        for kind, llm in (("drafted", drafted), ("plain", plain)):
            start = time.perf_counter()
            for prompt in prompts:
                llm.generate([prompt], params)
                if kind == "drafted" and llm.stats.draft is not None:
                    steps.append(llm.stats.draft.accepted_per_step)
            if round_index:  # the first warms up
                total = len(prompts) * params.max_tokens
                rates[kind].append(total / (time.perf_counter() - start))
    ratios = [a / b for a, b in zip(rates["drafted"], rates["plain"], strict=True)]
    print(
        f"{name:8} drafted {statistics.median(rates['drafted']):8.1f} tokens/s, plain "
        f"{statistics.median(rates['plain']):8.1f}: {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}); tokens a step {statistics.mean(steps):.2f}"
    )


if __name__ == "__main__":
    main()
