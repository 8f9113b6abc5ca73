"""Random training windows and consecutive evaluation windows, all opened by BOS."""

from collections.abc import Iterator

import torch
from torch import Tensor

from samples.train.tokenizer import BOS_ID


def open_windows(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets [B, T] of windows [B, T]: BOS and the window but its end, the window."""
    bos = torch.full_like(ids[:, :1], BOS_ID)
    return torch.cat((bos, ids[:, :-1]), dim=1), ids


def sample_batches(
    stream: Tensor, lengths: tuple[int, ...], tokens_per_step: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of windows at random places; the window length cycles through `lengths`.

    The same seed gives the same batches to every model.
    """
    generator = torch.Generator().manual_seed(seed)
    while True:
        for length in lengths:
            rows = max(1, tokens_per_step // length)
            starts = torch.randint(len(stream) - length + 1, (rows,), generator=generator)
            yield open_windows(torch.stack([stream[s : s + length] for s in starts.tolist()]))


def consecutive_windows(ids: Tensor, length: int, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut ids [N] into windows in order, each token a target once; the last may be shorter."""
    whole = len(ids) // length * length
    if whole:
        for chunk in torch.split(ids[:whole].view(-1, length), rows):
            yield open_windows(chunk)
    if whole < len(ids):
        yield open_windows(ids[None, whole:])
