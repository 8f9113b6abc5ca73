"""Hidden Decoding: a token enters as n rows, one per embedding table; its last row predicts.

Method: arXiv 2607.08186. Tensor names and settings: the public layout (`scale_seq_*`).
Letters in shapes: B batch, T tokens, n streams, C hidden, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samples.train.llama import Backbone, DenseLlama, LlamaSettings, Rope, build_rope

FIRST_TABLE = "model.embed_tokens.weight"
EXTRA_TABLE = "model.scale_seq_embed_tokens_list.{}.weight"


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How many rows a token has, and in which layers rows of different streams meet.

    The last layer should be cross-stream: of intra-stream layers behind the last cross-stream one,
    only the last stream reaches the prediction.
    """

    num_streams: int = 2
    cross_stream_layers: tuple[int, ...] = (3, 7)

    def __post_init__(self) -> None:
        if self.num_streams < 1:
            raise ValueError(f"num_streams is {self.num_streams}; give at least 1")

    def as_dict(self, num_layers: int) -> dict[str, object]:
        """The public keys of config.json; `scale_seq_times` counts the extra streams."""
        own_stream = [layer not in self.cross_stream_layers for layer in range(num_layers)]
        return {
            "scale_seq_attn_per_suffix_layerwise": own_stream,
            "scale_seq_times": self.num_streams - 1,
        }


class StreamBackbone(Backbone):
    """The backbone over n rows a token: row i * n + s is E_s(x_i)."""

    def __init__(self, settings: LlamaSettings, streams: StreamSettings) -> None:
        super().__init__(settings)
        self.streams = streams
        self.scale_seq_embed_tokens_list = nn.ModuleList(
            nn.Embedding(settings.vocab_size, settings.hidden_size)
            for _ in range(streams.num_streams - 1)
        )

    def embed_rows(self, tokens: Tensor) -> Tensor:
        """E_s(x_i) [B, T, n, C] of tokens [B, T]."""
        tables = [self.embed_tokens, *self.scale_seq_embed_tokens_list]
        return torch.stack([table(tokens) for table in tables], dim=2)

    def run_layers(self, tokens: Tensor) -> list[Tensor]:
        """States [B, T, C] of the last stream after 0, 1, .. and all layers, before any norm."""
        rows = self.embed_rows(tokens)
        rope = build_rope(tokens.shape[1] * self.streams.num_streams, self.settings)
        states = [rows[:, :, -1]]
        for index, layer in enumerate(self.layers):
            crosses = index in self.streams.cross_stream_layers
            rows = (run_cross_stream if crosses else run_intra_stream)(layer, rows, rope)
            states.append(rows[:, :, -1])
        return states


def run_cross_stream(layer: nn.Module, rows: Tensor, rope: Rope) -> Tensor:
    """Rows [B, T, n, C] as one sequence of n * T: causal over rows, positions count rows."""
    output: Tensor = layer(rows.flatten(1, 2), rope)
    return output.view_as(rows)


def run_intra_stream(layer: nn.Module, rows: Tensor, rope: Rope) -> Tensor:
    """Rows [B, T, n, C] as n sequences of T: causal over tokens, positions count tokens."""
    folded = rows.transpose(1, 2)
    num_tokens = rows.shape[1]
    output: Tensor = layer(folded.flatten(0, 1), (rope[0][:num_tokens], rope[1][:num_tokens]))
    return output.view_as(folded).transpose(1, 2)


class HiddenDecodingLlama(DenseLlama):
    """The baseline over n rows a token; the loss is on the last stream alone."""

    def __init__(self, settings: LlamaSettings, streams: StreamSettings) -> None:
        super().__init__(settings, StreamBackbone(settings, streams))


def expand_tables(weights: Mapping[str, Tensor], num_streams: int) -> dict[str, Tensor]:
    """Weights for `num_streams` streams: the tables there are, repeated in turn (cyclically)."""
    names = [FIRST_TABLE, *(EXTRA_TABLE.format(i) for i in range(num_streams - 1))]
    found = [weights[name] for name in names if name in weights]
    return dict(weights) | {name: found[i % len(found)] for i, name in enumerate(names)}
