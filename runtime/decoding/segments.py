"""The graphs of a model with exits, over one cache: what piggyback decoding and scoring share."""

import numpy as np

from quatrain.runtime.decoding.history import TokenHistory
from quatrain.runtime.decoding.row_runner import RowRunner
from quatrain.runtime.decoding.row_source import ArrayRows, choose_token_source
from quatrain.runtime.errors import RequestError
from quatrain.runtime.manifest import ExitLayout
from quatrain.runtime.session import Model

__all__ = ["Segments", "require_exits"]


class Segments:
    """A runner per segment, and the head graphs by name.

    `hidden`, float32 [B, C, H], holds for every position the state behind the deepest segment it
    has been through, which is exactly what its next segment starts from; the caller writes it.
    """

    def __init__(self, model: Model, history: TokenHistory, chunk: int) -> None:
        self.layout = require_exits(model)
        batch_size, capacity = history.tokens.shape
        head = model.manifest.graph(self.layout.heads[0])
        hidden_size = head.inputs[0].shape[-1]
        assert isinstance(hidden_size, int)
        self.hidden = np.zeros((batch_size, capacity, hidden_size), np.float32)
        self.cache = model.allocate_cache(batch_size)
        graphs = model.bind(self.cache)
        first, *deeper = self.layout.segments
        sources = {first: choose_token_source(model, history)}
        sources |= dict.fromkeys(deeper, ArrayRows("hidden", self.hidden))
        self.runners = [
            RowRunner(graphs[name], self.cache, source, chunk) for name, source in sources.items()
        ]
        self.heads = {name: graphs[name] for name in self.layout.heads}


def require_exits(model: Model) -> ExitLayout:
    """The model's exits; a `RequestError` where it has none."""
    if model.manifest.exits is None:
        raise RequestError(
            "a model with exits",
            f"{model.bundle} holds a model without",
            "use make_decoder, or score_tokens, which serve both",
        )
    return model.manifest.exits
