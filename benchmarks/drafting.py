"""Decoding with latent drafts against plain decoding of the same bundle, batch 1, on a CPU.

    python -m benchmarks.drafting
    python -m benchmarks.drafting --checkpoint FOLDER --text FILE

`easy` continues passages of the text greedily, `hot` draws behind them at temperature 1. `adverse`
is `easy` with a drafter that was spoilt, so that its guesses are mostly wrong. `auto` decides for
itself how much to draft, `always` drafts the same number of tokens in every round. They and plain
runs take turns, round by round; a ratio is taken within a round.
"""

import argparse
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from benchmarks._report import show_spread
from benchmarks._turns import take_turns
from quatrain.exporter import export_checkpoint, open_checkpoint
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
    parser.add_argument("--draft", type=int, default=4, help="of `always` (default: 4)")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spoilt = Path(folder) / "spoilt"
        _spoil(args.checkpoint, spoilt)
        for checkpoint, cases in ((args.checkpoint, ("easy", "hot")), (spoilt, ("adverse",))):
            bundle = Path(folder) / cases[0]
            export_checkpoint(checkpoint, bundle, drafter=True, self_test=False)
            with ExitStack() as stack:
                settings: dict[str, Literal["auto"] | int]
                settings = {"auto": "auto", "always": args.draft, "plain": 0}
                llms = {}
                for name, draft in settings.items():
                    llm = LLM(bundle, draft=draft, backend="onnxruntime", threads=args.threads)
                    llms[name] = stack.enter_context(llm)
                prompts = _cut_prompts(llms["plain"], args)
                for case in cases:
                    _report(case, llms, prompts, _choose_params(case, args), args.rounds)


def _spoil(checkpoint: Path, folder: Path) -> None:
    """A copy whose dynamics change each state the other way: their last matrix, signs turned."""
    shutil.copytree(checkpoint, folder)
    tensors = open_checkpoint(folder).tensors
    names = ("lower_dynamics.down.weight", "dynamics_model.mlp.4.weight")
    [tensor] = [tensors[name] for name in names if name in tensors]
    item_bytes = tensor.nbytes // math.prod(tensor.shape)
    with tensor.file.open("r+b") as file:
        file.seek(tensor.offset)
        data = np.frombuffer(file.read(tensor.nbytes), np.uint8).copy()
        data[item_bytes - 1 :: item_bytes] ^= 0x80
        file.seek(tensor.offset)
        file.write(data.tobytes())


def _cut_prompts(llm: LLM, args: argparse.Namespace) -> list[list[int]]:
    assert llm.tokenizer is not None
    ids = llm.tokenizer.encode(args.text.read_text(encoding="utf-8"))
    starts = np.random.default_rng(0).integers(0, len(ids) - 64, args.prompts)
    return [list(ids[start : start + 64]) for start in starts.tolist()]


def _choose_params(case: str, args: argparse.Namespace) -> SamplingParams:
    temperature = 1.0 if case == "hot" else 0.0
    # Without a seed: with one, `auto` does not draft, so that draws repeat.
    return SamplingParams(temperature, max_tokens=args.tokens, ignore_eos=True)


def _report(
    case: str,
    llms: dict[str, LLM],
    prompts: Sequence[list[int]],
    params: SamplingParams,
    rounds: int,
) -> None:
    variants = {name: partial(_measure, llm, prompts, params) for name, llm in llms.items()}
    measured = take_turns(variants, rounds)
    rates = {name: [rate for rate, _ in values] for name, values in measured.items()}
    plain = rates.pop("plain")
    print(f"{case:8} plain  {statistics.median(plain):8.1f} tokens/s")
    for name, own in rates.items():
        ratios = [a / b for a, b in zip(own, plain, strict=True)]
        print(
            f"{case:8} {name:6} {statistics.median(own):8.1f} tokens/s: "
            f"{show_spread(ratios)}; tokens a "
            f"step {statistics.mean(step for _, steps in measured[name] for step in steps):.2f}"
        )


def _measure(
    llm: LLM, prompts: Sequence[list[int]], params: SamplingParams
) -> tuple[float, list[float]]:
    """Tokens per second, and of each prompt, with a drafter, tokens per step."""
    steps = []
    start = time.perf_counter()
    for prompt in prompts:
        llm.generate([prompt], params)
        if llm.stats.draft is not None:
            steps.append(llm.stats.draft.accepted_per_step)
    return len(prompts) * params.max_tokens / (time.perf_counter() - start), steps


if __name__ == "__main__":
    main()
