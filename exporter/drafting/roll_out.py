"""The loss of a roll-out: the dynamics go on from their own guesses, the tokens are the text's."""

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.drafting.dynamics import Passed, Weights, guess_next, pass_back

__all__ = ["roll_out", "take_loss"]

# HiLP weighs them 0.1 to 10, over all of its vocabulary and with states that learn to be guessed.
# With a frozen SmolLM2-135M and 29 thousand tokens, 1.51 tokens a step are accepted without the
# divergence, 1.62 with this weight and 1.56 with 0.1.
_DIVERGENCE_WEIGHT = 0.03

Floats = NDArray[np.floating]


def roll_out(weights: Weights, states: Floats, embeddings: Floats) -> list[Passed]:
    """One step for each of the embeddings [B, K, d], from states [B, d]."""
    steps: list[Passed] = []
    for k in range(embeddings.shape[1]):
        steps.append(guess_next(weights, states, embeddings[:, k]))
        states = steps[-1].next_states
    return steps


def take_loss(
    weights: Weights, states: Floats, embeddings: Floats, head: Floats
) -> tuple[float, Weights]:
    """How far guesses are from true states, on average; and the gradients of the weights, through
    all steps.

    It is the mean of SmoothL1 over steps, rows and numbers (x^2 / 2 where |x| < 1, |x| - 1/2
    beyond), and 0.03 times the mean over steps and rows of KL(p || q), where p and q are the
    softmax of what the head says of the true state and of the guess.

    Args:
        states: True ones [B, K + 1, d]; the roll-out begins from the first.
        embeddings: Of the tokens between them, [B, K, d].
        head: Rows of the head, [C, d], for the tokens that p and q are over.
    """
    steps = roll_out(weights, states[:, 0], embeddings)
    num_guesses = states.shape[0] * len(steps)
    loss = 0.0
    gradients: Weights = {}
    slope = np.zeros_like(states[:, 0])
    for k in reversed(range(len(steps))):
        pair = steps[k].next_states, states[:, k + 1]
        for measure, weight in ((_smooth_l1, 1.0), (_diverge, _DIVERGENCE_WEIGHT)):
            part, part_slope = measure(*pair, head)
            loss += weight * part / num_guesses
            slope = slope + part_slope * (weight / num_guesses)
        found, slope = pass_back(weights, steps[k], slope)
        for name, gradient in found.items():
            gradients[name] = gradients[name] + gradient if name in gradients else gradient
    return loss, gradients


def _smooth_l1(guesses: Floats, states: Floats, head: Floats) -> tuple[float, Floats]:
    """Its mean over numbers, summed over rows, and the gradient of the guesses."""
    hidden_size = states.shape[1]
    error = guesses - states
    clipped = np.clip(error, -1, 1)
    # Within and beyond, it is c (x - c / 2) of the clipped c.
    loss = float((clipped * (error - clipped / 2)).sum(dtype=np.float64)) / hidden_size
    return loss, clipped / hidden_size


def _diverge(guesses: Floats, states: Floats, head: Floats) -> tuple[float, Floats]:
    """KL(p || q), summed over rows, and the gradient of the guesses: (q - p) times the head."""
    log_q, log_p = (_log_softmax(rows @ head.T) for rows in (guesses, states))
    p = np.exp(log_p)
    loss = float((p * (log_p - log_q)).sum(dtype=np.float64))
    return loss, (np.exp(log_q) - p) @ head


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
