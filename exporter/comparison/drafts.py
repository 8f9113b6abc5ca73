"""Rolls a drafter out from every state, with the tokens that really follow."""

import numpy as np
from numpy.typing import NDArray

from quatrain.exporter.comparison.trace import Trace
from quatrain.runtime.session import BoundGraph, Model, Sizes

__all__ = ["NUM_DRAFTS", "roll_out_drafts"]

NUM_DRAFTS = 4


def roll_out_drafts(model: Model, tokens: NDArray[np.int64], states: NDArray[np.float32]) -> Trace:
    """From the states [B, L, H] of all positions of sequences [B, L]: `draft.{j}.state`
    [B, L - j, H] and `draft.{j}.logits` [B, L - j, V], j tokens further, for j = 1 .. 4."""
    assert model.manifest.drafter is not None
    graph = model.sessions[model.manifest.drafter.graph].bind()
    trace: Trace = {}
    batch_size, length = tokens.shape
    for j in range(1, min(NUM_DRAFTS + 1, length)):
        following = tokens[:, j:].reshape(-1)
        rows = states[:, :-1].reshape(len(following), -1)
        new_states, logits = _draft(model, graph, rows, following)
        states = new_states.reshape(batch_size, length - j, -1)
        trace[f"draft.{j}.state"] = states
        trace[f"draft.{j}.logits"] = logits.reshape(batch_size, length - j, -1)
    return trace


def _draft(
    model: Model, graph: BoundGraph, states: NDArray[np.float32], tokens: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """One step for states [R, H] and the tokens behind them [R], in calls of the batch the bundle
    allows."""
    size = model.manifest.limits.max_batch
    pieces = []
    for at in range(0, len(tokens), size):
        part = tokens[at : at + size]
        inputs = graph.prepare(Sizes(len(part)))
        inputs["state"][...] = states[at : at + size]
        if model.embeddings is None:
            inputs["input_ids"][...] = part
        else:
            model.embeddings.look_up(part, inputs["inputs_embeds"])
        outputs = graph.execute()
        pieces.append((outputs["updated_state"].copy(), outputs["logits"].copy()))
    return (
        np.concatenate([state for state, _ in pieces]).astype(np.float32, copy=False),
        np.concatenate([logits for _, logits in pieces]).astype(np.float32, copy=False),
    )
