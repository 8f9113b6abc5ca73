"""Text that a model writes itself, behind the beginnings of others."""

import torch
from torch import Tensor

from samples.train.llama import DenseLlama, Past, build_rope


class Writer:
    """Runs a plain decoder over the tokens [B, T] behind those it has seen, once each."""

    def __init__(self, model: DenseLlama, batch: int, room: int) -> None:
        self._model = model
        settings = model.model.settings
        self._rope = build_rope(room, settings)
        self._pasts = [Past(batch, room, settings) for _ in model.model.layers]
        self._seen = 0

    def predict(self, tokens: Tensor) -> Tensor:
        """Logits [B, V] of what follows the tokens [B, T], of which the first `seen` are known."""
        backbone, start = self._model.model, self._seen
        length = self._seen = tokens.shape[1]
        mask = backbone.build_mask(tokens)
        if mask is None:
            mask = torch.ones(length, length, dtype=torch.bool).tril()
        mask = mask[..., start:, :]
        rope = (self._rope[0][start:length], self._rope[1][start:length])
        rows: Tensor = backbone.embed_tokens(tokens[:, start:])
        for layer, past in zip(backbone.layers, self._pasts, strict=True):
            rows = layer(rows, rope, mask, past)
        logits: Tensor = self._model.lm_head(backbone.norm(rows[:, -1]))
        return logits


@torch.no_grad()
def continue_text(
    model: DenseLlama,
    prompts: Tensor,
    count: int,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Prompts [B, P] and `count` tokens behind each, [B, P + count].

    They are the likeliest ones at temperature 0, drawn from the generator above.
    """
    tokens, writer = prompts, Writer(model, len(prompts), prompts.shape[1] + count)
    for _ in range(count):
        logits = writer.predict(tokens)
        if temperature == 0:
            chosen = logits.argmax(dim=-1, keepdim=True)
        else:
            probs = (logits / temperature).softmax(dim=-1)
            chosen = torch.multinomial(probs, 1, generator=generator)
        tokens = torch.cat((tokens, chosen), dim=1)
    return tokens
