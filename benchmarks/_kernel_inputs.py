"""Random inputs of a kernel case, what the reference makes of them, and how near is right."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks._kernel_cases import AttentionCase, Case, FeedForwardCase
from benchmarks._kernel_run import DTYPES
from quatrain.plugins.bank_topk_ffn.reference import bank_topk_feed_forward
from quatrain.plugins.definition import DType
from quatrain.plugins.exit_router.reference import RouterBlock, route_exit
from quatrain.plugins.stream_attention.reference import stream_factorized_attention

__all__ = ["TOLERANCES", "make_inputs", "run_reference"]

Array = NDArray[np.float32]

TOLERANCES: dict[DType, float] = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}
"""The largest difference to the reference, as a share of the largest value of an output.

Some units in the last place of the type for 16 bits; for float32, what sums in another order, over
some thousand terms, may differ by.
"""


def make_inputs(case: Case, dtype: DType, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
    """Of the case's shapes, on a device."""
    generator = torch.Generator(device).manual_seed(seed)
    if isinstance(case, AttentionCase):
        return _make_attention_inputs(case, dtype, generator)
    shapes = [shape for _, shape in case.list_inputs(dtype)]
    # Products with a matrix [out, in] keep the size of what they multiply.
    tensors = [
        _draw(shape, shape[-1] ** -0.5 if len(shape) == 2 else 1.0, generator) for shape in shapes
    ]
    if isinstance(case, FeedForwardCase):
        tensors[5] *= (case.hidden / case.inner) ** 0.5
        if case.is_exact:
            _round_logits(case, tensors, generator)
    return [tensor.to(DTYPES[dtype]) for tensor in tensors]


def run_reference(case: Case, inputs: Sequence[torch.Tensor]) -> list[Array]:
    """The outputs that NumPy computes from the same inputs, in float32."""
    if isinstance(case, AttentionCase):
        return [_attend(case, inputs)]
    arrays = [tensor.float().cpu().numpy() for tensor in inputs]
    attributes = cast(dict[str, Any], dict(case.attributes))
    if isinstance(case, FeedForwardCase):
        x, *weights = arrays
        return [bank_topk_feed_forward(x, *weights, **attributes)]
    blocks = [RouterBlock(*arrays[j : j + 4]) for j in range(2, len(arrays) - 3, 4)]
    hidden, norm_weight = arrays[:2]
    return list(route_exit(hidden, norm_weight, blocks, *arrays[-3:], **attributes))


def _make_attention_inputs(
    case: AttentionCase, dtype: DType, generator: torch.Generator
) -> list[torch.Tensor]:
    """The first of the batch is as long as it may be; each other ends somewhere before.

    Behind a row's live length its caches are NaN, which no kernel may read.
    """
    (_, query), (_, cache), *_, (_, mask) = case.list_inputs(dtype)
    device = generator.device
    shortest, longest = case.tokens, case.live
    lengths = torch.randint(
        shortest, longest + 1, (case.batch,), generator=generator, device=device
    )
    lengths[0] = longest
    key_cache, value_cache = _draw(cache, 1.0, generator), _draw(cache, 1.0, generator)
    behind = torch.arange(case.capacity, device=device)[None] >= lengths[:, None]
    for tensor in (key_cache, value_cache):
        tensor.masked_fill_(behind[:, None, :, None], float("nan"))
    positions = lengths[:, None] - case.tokens + torch.arange(case.tokens, device=device)
    distance = positions[:, None, :, None] - torch.arange(case.live, device=device)
    seen = (distance >= 0) & (distance < (case.window or case.live))
    floats = [_draw(query, 1.0, generator), key_cache, value_cache]
    return [
        *(tensor.to(DTYPES[dtype]) for tensor in floats),
        positions,
        seen.expand(mask).contiguous(),
    ]


def _round_logits(
    case: FeedForwardCase, tensors: list[torch.Tensor], generator: torch.Generator
) -> None:
    """Make x and the predictor such that all sums are small whole numbers."""
    tensors[0].round_().clamp_(-2, 2)
    few = torch.rand(tensors[1].shape, generator=generator, device=generator.device)
    tensors[1].sign_().mul_(few < 8 / case.hidden)
    few = torch.rand(tensors[2].shape, generator=generator, device=generator.device)
    tensors[2].sign_().mul_(few < 4 / case.rank)


def _draw(shape: Sequence[int], scale: float, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(tuple(shape), generator=generator, device=generator.device) * scale


def _attend(case: AttentionCase, inputs: Sequence[torch.Tensor]) -> Array:
    query, keys, values = (tensor.float().cpu().numpy() for tensor in inputs[:3])
    # Weights of zero times NaN would be NaN.
    keys, values = (np.nan_to_num(cache[:, :, : case.live]) for cache in (keys, values))
    return stream_factorized_attention(
        query,
        keys,
        values,
        inputs[3].cpu().numpy(),
        scale=case.head_dim**-0.5,
        window=case.window,
    )
