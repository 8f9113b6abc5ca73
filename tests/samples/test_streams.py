"""Hidden decoding as it is trained: tables that repeat, and streams that follow the masks."""

import pytest
import torch
from tests.samples.tiny_models import TINY, draw_tokens
from torch import Tensor, nn

from samples.train.llama import DenseLlama, Rope, apply_rope, build_rope
from samples.train.streams import HiddenDecodingLlama, StreamSettings, expand_tables

TABLE = "model.scale_seq_embed_tokens_list.{}.weight"


def build_tiny_streams(num_streams: int, cross_stream_layers: tuple[int, ...]) -> DenseLlama:
    """Random weights, so no two streams are alike."""
    torch.manual_seed(0)
    return HiddenDecodingLlama(TINY, StreamSettings(num_streams, cross_stream_layers))


@pytest.mark.parametrize("num_streams", [1, 2, 3])
def test_expanded_model_without_cross_stream_layers_is_the_dense_model(num_streams: int) -> None:
    torch.manual_seed(0)
    dense = DenseLlama(TINY)
    expanded = HiddenDecodingLlama(TINY, StreamSettings(num_streams, ()))
    expanded.load_state_dict(expand_tables(dense.state_dict(), num_streams))
    tokens, _ = draw_tokens()
    torch.testing.assert_close(expanded.compute_logits(tokens), dense.compute_logits(tokens))


def test_expansion_repeats_the_tables_in_turn() -> None:
    two = build_tiny_streams(2, ()).state_dict()
    four = expand_tables(two, 4)
    first, second = two["model.embed_tokens.weight"], two[TABLE.format(0)]
    assert not torch.equal(first, second)
    for name, expected in ((0, second), (1, first), (2, second)):
        assert torch.equal(four[TABLE.format(name)], expected)
    build_tiny_streams(4, ()).load_state_dict(four)
    assert TABLE.format(1) not in two


def attend_rows(attention: nn.Module, x: Tensor, rope: Rope, mask: Tensor) -> Tensor:
    """Attention over rows [1, R, C] with one position a row and a mask [R, R], spelled out."""
    heads = [getattr(attention, f"{n}_proj")(x).view(1, x.shape[1], -1, 32) for n in "qkv"]
    queries, keys, values = (head.transpose(1, 2) for head in heads)
    scores = apply_rope(queries, rope) @ apply_rope(keys, rope).transpose(2, 3) / 32**0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    output: Tensor = attention.get_submodule("o_proj")(
        (weights @ values).transpose(1, 2).flatten(2)
    )
    return output


def compute_row_logits(model: DenseLlama, tokens: Tensor, streams: StreamSettings) -> Tensor:
    """Logits [1, T, V] from rows i * n + s, explicit masks and explicit positions."""
    n, backbone = streams.num_streams, model.model
    tables = [
        backbone.embed_tokens,
        *backbone.get_submodule("scale_seq_embed_tokens_list").children(),
    ]
    x = torch.stack([tables[s](tokens[0, i]) for i in range(tokens.shape[1]) for s in range(n)])[
        None
    ]
    rows = torch.arange(x.shape[1])
    causal = rows[None] <= rows[:, None]
    cos, sin = build_rope(len(rows), TINY)
    for index, layer in enumerate(backbone.layers):
        crosses = index in streams.cross_stream_layers
        mask = causal if crosses else causal & (rows[None] % n == rows[:, None] % n)
        positions = rows if crosses else rows // n
        x = x + attend_rows(
            layer.self_attn, layer.input_layernorm(x), (cos[positions], sin[positions]), mask
        )
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.lm_head(backbone.norm(x)[:, n - 1 :: n])


@pytest.mark.parametrize("cross_stream_layers", [(), (1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("num_streams", [2, 3])
def test_streams_follow_the_masks(num_streams: int, cross_stream_layers: tuple[int, ...]) -> None:
    streams = StreamSettings(num_streams, cross_stream_layers)
    model = build_tiny_streams(num_streams, cross_stream_layers)
    tokens = draw_tokens()[0][:1]
    expected = compute_row_logits(model, tokens, streams)
    torch.testing.assert_close(model.compute_logits(tokens), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("changed", [1, 4, 6])
def test_cross_stream_layers_never_see_the_future(changed: int) -> None:
    model = build_tiny_streams(2, (1, 3))
    tokens, _ = draw_tokens()
    other = tokens.clone()
    other[:, changed] = (other[:, changed] + 1) % 32
    before, after = model.compute_logits(tokens), model.compute_logits(other)
    torch.testing.assert_close(after[:, :changed], before[:, :changed], atol=1e-6, rtol=1e-6)
    for later in range(changed, tokens.shape[1]):
        assert (after[:, later] - before[:, later]).abs().max() > 1e-4


def test_first_stream_counts_only_through_cross_stream_layers() -> None:
    tokens, _ = draw_tokens()
    for cross_stream_layers, counts in (((), False), ((3,), True)):
        model = build_tiny_streams(2, cross_stream_layers)
        before = model.compute_logits(tokens)
        with torch.no_grad():
            model.model.embed_tokens.weight += 1
        assert torch.equal(model.compute_logits(tokens), before) != counts
