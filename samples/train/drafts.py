"""How many tokens a step of drafted greedy decoding commits, counted as HiLP's paper counts.

A step is one call of the model. Its own next token is always right; then come the drafts, read
off guessed states, up to the first that is not the model's own greedy choice.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from samples.train.batches import open_windows
from samples.train.continuation import continue_text
from samples.train.latent import LatentLlama

MAX_DRAFT = 4
PROMPT_LENGTH = 64


@dataclass(frozen=True, slots=True)
class DraftReport:
    """Tokens a step, at most 1 + MAX_DRAFT: in one step after text, and in whole greedy runs.

    `first_right` is the share of positions of the greedy runs at which the first draft is right.
    """

    after_text: float
    along_greedy: float
    first_right: float


def cut_prompts(ids: Tensor, length: int, stride: int) -> Tensor:
    """Windows [N, `length`] of ids, one every `stride` tokens, BOS in front of all but the last."""
    return open_windows(ids.unfold(0, length, stride))[0]


@torch.no_grad()
def count_matches(model: LatentLlama, tokens: Tensor, max_draft: int) -> Tensor:
    """Leading drafts that are the next tokens, for a step at each position: [N, T - 1 - max_draft].

    Entry t is of the step that has state t: its own token is t + 1, its drafts are those behind.
    Up to the first mismatch the drafts are the tokens, so the roll-out may take it from there.
    """
    length = tokens.shape[1] - 1 - max_draft
    states = model.compute_states(tokens)
    matches = [
        model.lm_head(guess[:, :length]).argmax(dim=-1) == tokens[:, 1 + step :][:, :length]
        for step, guess in enumerate(model.roll_out(states, tokens, max_draft), start=1)
    ]
    return torch.stack(matches).int().cumprod(dim=0).sum(dim=0)


def walk_steps(matches: Tensor) -> tuple[int, int]:
    """Steps and committed tokens over counts [N, T], each row from its start past its end."""
    steps = committed = 0
    for row in matches.tolist():
        position = 0
        while position < len(row):
            steps, committed = steps + 1, committed + 1 + row[position]
            position += 1 + row[position]
    return steps, committed


def match_drafts(model: LatentLlama, prompts: Tensor, count: int) -> Tensor:
    """Leading drafts that are right, [N, count], for a step at each of `count` tokens that the
    model writes behind prompts [N, P]."""
    tokens = continue_text(model, prompts, count + MAX_DRAFT)
    return count_matches(model, tokens, MAX_DRAFT)[:, prompts.shape[1] - 1 :]


def measure_drafts(model: LatentLlama, prompts: Tensor, count: int) -> float:
    """Committed tokens a step over at least `count` tokens behind each prompt [N, P]."""
    steps, committed = walk_steps(match_drafts(model, prompts, count))
    return committed / steps


def report_drafts(model: LatentLlama, heldout: Tensor) -> DraftReport:
    """After every 32nd token of the text one step, after every 256th a run of 64 tokens."""
    matches = match_drafts(model, cut_prompts(heldout, PROMPT_LENGTH, 256), 64)
    steps, committed = walk_steps(matches)
    return DraftReport(
        after_text=measure_drafts(model, cut_prompts(heldout, PROMPT_LENGTH, 32), 1),
        along_greedy=committed / steps,
        first_right=float((matches > 0).float().mean()),
    )
