"""The tokens that a bundle generates, through the runtime as a whole, held to the reference."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.comparison.cases import Case
from quatrain.exporter.comparison.meaning import describe_flips
from quatrain.exporter.comparison.result import Check, Flip
from quatrain.exporter.comparison.tolerances import Tolerances
from quatrain.exporter.comparison.trace import Trace
from quatrain.runtime.llm import LLM
from quatrain.runtime.sampling_params import SamplingParams

__all__ = ["Generated", "generate_greedily", "judge_generated"]

_PROMPT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Generated:
    """Sequences int64 [B, L]: prompts of `prompt_length`, and what was generated behind them."""

    tokens: NDArray[np.int64]
    prompt_length: int

    def as_case(self, chunk: int) -> Case:
        """The case of feeding them, but for the last token, as they were generated."""
        batch_size, length = self.tokens.shape
        return Case(
            "greedy",
            "tokens that were generated",
            tuple(range(batch_size)),
            (length - 1,) * batch_size,
            (self.prompt_length,) * batch_size,
            chunk,
        )


def generate_greedily(
    folder: Path,
    backend: Literal["onnxruntime", "tensorrt"],
    table: NDArray[np.int64],
    steps: int,
) -> Generated:
    """Generate `steps` tokens after short prompts out of the token table."""
    length = max(1, min(_PROMPT_TOKENS, table.shape[1] - steps))
    params = SamplingParams(
        temperature=0.0, max_tokens=min(steps, table.shape[1] - length), ignore_eos=True
    )
    prompts = table[:, :length]
    with LLM(folder, backend=backend, exact=True, verify=False) as llm:
        results = llm.generate(prompts.tolist(), params)
    generated = np.asarray([list(result.token_ids) for result in results], np.int64)
    return Generated(np.concatenate([prompts, generated], axis=1), length)


def judge_generated(
    generated: Generated, reference: Trace, runner: str, tolerances: Tolerances
) -> tuple[Check, list[Flip]]:
    """Ask the reference at each generated token, after those before it, what it would have said."""
    flips = []
    new_tokens = generated.tokens[:, generated.prompt_length :]
    for b, row in enumerate(new_tokens):
        for position, token in enumerate(row, generated.prompt_length - 1):
            flip = _find_flip(reference, (b, position), int(token), tolerances.tie)
            if flip is not None:
                expected, margin = flip
                flips.append(Flip(runner, "greedy", b, position, expected, int(token), margin))
    total, tie = new_tokens.size, tolerances.tie
    share = 1 - sum(flip.margin > tie for flip in flips) / total
    check = Check(
        "greedy tokens",
        share >= tolerances.top1,
        share,
        tolerances.top1,
        runner,
        describe_flips(flips, total, tie),
        at_least=True,
    )
    return check, flips


def _find_flip(
    reference: Trace, place: tuple[int, int], token: int, tie: float
) -> tuple[int, float] | None:
    """The reference's own token, and by how much it prefers that; None where it would say `token`.

    A router that is as good as undecided may leave or go on: then the closer of both counts.
    """
    found = []
    for scores in _choose_exits(reference, place, tie):
        expected = int(scores.argmax())
        if expected == token:
            return None
        found.append((float(scores[expected] - scores[token]), expected))
    margin, expected = min(found)
    return expected, margin


def _choose_exits(
    reference: Trace, place: tuple[int, int], tie: float
) -> Iterator[NDArray[np.float32]]:
    """The scores [V] at sequence and position: with exits, those of the first that its router
    leaves at, as the runtime does at temperature 0, and of others before it that are ties."""
    if "logits" in reference:
        yield reference["logits"][place]
        return
    k = 0
    while (router := reference.get(f"exits.{k}.router_logprobs")) is not None:
        ahead = float(router[place][1] - router[place][0])
        if ahead > -tie:
            yield reference[f"exits.{k}.logits"][place]
        if ahead > tie:
            return
        k += 1
    yield reference[f"exits.{k}.logits"][place]
