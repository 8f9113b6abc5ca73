"""Decoders whose cache grows under them."""

import numpy as np

from quatrain.runtime.decoding.plain import PlainDecoder
from quatrain.runtime.session import Model


def draw_tokens(model: Model) -> list[int]:
    ids: list[int] = np.random.default_rng(0).integers(0, model.manifest.vocab_size, 100).tolist()
    return ids


def test_growth_changes_no_number(dense: Model) -> None:
    """Fed token by token the cache grows several times, fed at once only in the beginning."""
    ids = draw_tokens(dense)
    expected = PlainDecoder(dense, 1).feed([ids]).logits.copy()
    stepwise = PlainDecoder(dense, 1)
    lengths = set()
    for token in ids:
        found = stepwise.feed([[token]]).logits
        lengths.add(stepwise.cache.tensors["key_cache.0"].shape[2])
    assert lengths == {32, 64, 96, 104}
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_two_decoders_of_one_model_grow_apart(dense: Model) -> None:
    ids = draw_tokens(dense)
    alone = PlainDecoder(dense, 1).feed([ids]).logits.copy()
    first, second = PlainDecoder(dense, 1), PlainDecoder(dense, 1)
    for start in range(0, 100, 10):
        found = first.feed([ids[start : start + 10]]).logits
        second.feed([ids[:1]])
    assert np.abs(found - alone).max() <= 1e-5 * np.abs(alone).max()
