"""Text that sample models are not trained on, and the scores they get on it."""

import pytest
import torch
from tests.samples.tiny_models import build_tiny

from samples.train.data import SHORT_PARAGRAPH, load_split
from samples.train.evaluate import report_exits, route_argmax, score_text


def list_paragraphs(text: str) -> set[str]:
    joined = (" ".join(p.split()) for p in text.split("\n\n"))
    return {p for p in joined if len(p) >= SHORT_PARAGRAPH}


def test_heldout_paragraphs_are_not_trained_on() -> None:
    split = load_split()
    heldout = list_paragraphs(split.heldout)
    assert len(heldout) > 100
    assert not heldout & set().union(*map(list_paragraphs, split.documents))


def test_argmax_routing_goes_on_at_a_tie() -> None:
    conditional = torch.tensor([[0.5, 0.9, 0.1], [0.6, 0.9, 0.4]]).view(2, 1, 3)
    assert route_argmax(conditional).tolist() == [[1, 0, 2]]


def test_score_counts_every_token_once() -> None:
    model, ids = build_tiny(), torch.arange(300) % 32
    score = score_text(model, ids, num_bytes=600)
    windows = [ids[None, :256], ids[None, 256:]]
    nll = 0.0
    for window in windows:
        opened = torch.cat((torch.zeros(1, 1, dtype=torch.long), window[:, :-1]), dim=1)
        nll -= model.target_logprobs(opened, window).sum().item()
    assert score.perplexity == pytest.approx(torch.tensor(nll / 300).exp().item(), rel=1e-4)
    assert sum(report_exits(model, ids).mixture_shares) == pytest.approx(1)
