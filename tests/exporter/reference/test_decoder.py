"""How the NumPy reference is asked: what is kept, padding, and what it refuses."""

import numpy as np
import pytest
from tests.exporter.checkpoint.folders import GOLDEN

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.reference import ReferenceDecoder
from quatrain.runtime.errors import RequestError

FAMILIES = ["bank_topk", "hidden_decoding_sfa", "hilp", "nextlat", "nvium"]


def make(family: str, **options: bool) -> ReferenceDecoder:
    return ReferenceDecoder(open_checkpoint(GOLDEN / family / "checkpoint"), **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_stands_behind_a_sequence_changes_nothing_in_it(family: str) -> None:
    decoder = make(family)
    ids = np.arange(22).reshape(2, 11) * 3 % decoder.spec.backbone.vocab_size
    alone = decoder.run(ids[1:, :6])
    padded = ids.copy()
    padded[1, 6:] = -1
    together = decoder.run(padded, [11, 6])
    last = "mixture_logprobs" if family == "nvium" else "logits"
    found, expected = together[last][1:, :6], alone[last]
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    for name, array in together.items():
        assert array.dtype == np.bool_ or np.isfinite(array).all(), name


@pytest.mark.parametrize("family", FAMILIES)
def test_only_what_is_wanted_is_kept_and_it_is_the_same(family: str) -> None:
    decoder = make(family)
    ids = np.arange(8)[None]
    everything = decoder.run(ids)
    for wanted in everything:
        (name,) = decoder.run(ids, keep=wanted.__eq__)
        assert name == wanted
    some = decoder.run(ids, keep=lambda name: name.endswith("logits"))
    for name, array in some.items():
        np.testing.assert_array_equal(array, everything[name])


def test_weights_need_not_be_kept() -> None:
    ids = np.arange(8)[None]
    kept, read_again = make("nvium"), make("nvium", keep_weights=False)
    for decoder in (kept, read_again):
        np.testing.assert_array_equal(
            decoder.run(ids)["mixture_logprobs"], kept.run(ids)["mixture_logprobs"]
        )
    assert not read_again._weights._kept
    assert kept._weights._kept


def test_a_choice_of_channels_can_be_imposed() -> None:
    decoder, ids = make("bank_topk"), np.arange(24).reshape(2, 12)
    own = decoder.run(ids)
    names = [name for name in own if name.endswith("active_channels")]
    same = decoder.run(ids, channels={layer: own[name] for layer, name in enumerate(names)})
    np.testing.assert_array_equal(same["logits"], own["logits"])
    others = np.roll(own[names[1]], 1, axis=-1)
    imposed = decoder.run(ids, channels={1: others})
    np.testing.assert_array_equal(imposed["layers.1.attention"], own["layers.1.attention"])
    assert np.abs(imposed["layers.1.output"] - own["layers.1.output"]).max() > 1e-2
    np.testing.assert_array_equal(imposed[names[1]], own[names[1]])


def test_one_token() -> None:
    taps = make("hilp").run(np.array([[5]]))
    assert taps["logits"].shape[:2] == (1, 1)
    assert not [name for name in taps if name.startswith("draft")]


def test_names_are_in_the_order_of_execution() -> None:
    names = list(make("nvium").run(np.array([[5, 6]])))
    layers = [name for name in names if name.endswith((".attention", ".output"))]
    expected = [f"layers.{layer}.{part}" for layer in range(4) for part in ("attention", "output")]
    assert layers[:8] == expected
    assert names[0] == "embedding"
    assert names[-1] == "mixture_logprobs"


@pytest.mark.parametrize(
    ("ids", "lengths", "message"),
    [
        (np.array([1, 2]), None, r"shape \[2\]"),
        (np.zeros((0, 3), np.int64), None, r"shape \[0, 3\]"),
        (np.zeros((1, 0), np.int64), None, r"shape \[1, 0\]"),
        (np.array([[1.0]]), None, "float64"),
        (np.array([[1, 9999]]), None, "token 9999"),
        (np.array([[-1, 1]]), None, "token -1"),
        (np.array([[1, 2]]), [3], r"\[3\] tokens"),
        (np.array([[1, 2]]), [0], r"\[0\] tokens"),
        (np.array([[1, 2]]), [1, 1], r"\[1, 1\] tokens"),
    ],
)
def test_no_sequences(ids: np.ndarray, lengths: list[int] | None, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make("nextlat").run(ids, lengths)
