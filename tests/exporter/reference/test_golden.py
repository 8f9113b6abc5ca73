"""The NumPy reference against the golden sets, which other code computed."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.exporter.checkpoint.folders import GOLDEN

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.reference import ReferenceDecoder

TOLERANCE = 1e-5  # of the largest magnitude
FAMILIES = sorted(path.name for path in GOLDEN.iterdir())
Golden = dict[str, NDArray[Any]]


def load(family: str) -> tuple[ReferenceDecoder, Golden]:
    with np.load(GOLDEN / family / "golden.npz") as arrays:
        golden = dict(arrays)
    return ReferenceDecoder(open_checkpoint(GOLDEN / family / "checkpoint")), golden


def assert_close(found: NDArray[Any], expected: NDArray[Any], name: str) -> None:
    assert found.dtype == np.float32, name
    assert found.shape == expected.shape, name
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max(), name


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "nvium"])
def test_logits_states_and_guesses(family: str) -> None:
    decoder, golden = load(family)
    taps = decoder.run(golden["input_ids"])
    for ours, theirs in (("logits", "logits"), ("hidden", "hidden")):
        if theirs in golden:
            assert_close(taps[ours], golden[theirs], ours)
    if decoder.spec.drafter is not None:
        assert_close(taps["draft.1.state"], golden["pred_hidden"], "draft.1.state")


def test_exits_and_their_mixture() -> None:
    decoder, golden = load("nvium")
    taps = decoder.run(golden["input_ids"])
    assert_close(taps["mixture_logprobs"], golden["mix_logprobs"], "mixture")
    for k, logits in enumerate(golden["exit_logits"]):
        assert_close(taps[f"exits.{k}.logits"], logits, f"logits {k}")
        assert_close(np.exp(taps[f"exits.{k}.logprob"]), golden["exit_prob"][k], f"p {k}")
    for k, expected in enumerate(golden["router_exit_prob"]):
        assert_close(np.exp(taps[f"exits.{k}.router_logprobs"][..., 1]), expected, f"router {k}")
    assert "exits.3.router_logprobs" not in taps
    assert "logits" not in taps
    np.testing.assert_array_equal(taps["hidden"], taps["exits.3.state"])


def test_active_channels() -> None:
    decoder, golden = load("bank_topk")
    taps = decoder.run(golden["input_ids"])
    for layer in range(decoder.spec.backbone.num_hidden_layers):
        active = taps[f"layers.{layer}.active_channels"]
        assert active.dtype == np.bool_
        expected = golden["active_mask_last"][:, layer].astype(np.bool_)
        np.testing.assert_array_equal(active[:, -1], expected)
        assert (active.reshape(*active.shape[:2], -1, 64).sum(-1) == 16).all()


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "nvium"])
def test_greedy_tokens(family: str) -> None:
    """Fed with the golden run, each position says the next token of it."""
    decoder, golden = load(family)
    prompt, generated = golden["prompt_ids"], golden["generated_ids"]
    whole = np.concatenate((prompt, generated[None]), axis=1)
    said = decoder.run(whole)["logits"][0].argmax(-1)
    assert said[prompt.shape[1] - 1 : -1].tolist() == generated.tolist()


def test_greedy_tokens_and_exits_of_two_turns() -> None:
    """A token leaves at the first exit whose router prefers that."""
    decoder, golden = load("nvium")
    names = ("prompt_ids", "generated_ids", "turn2_prompt_ids", "turn2_generated_ids")
    parts = [golden[name].ravel() for name in names]
    whole = np.concatenate(parts)
    taps = decoder.run(whole[None])
    num_exits = len(golden["exit_prob"])
    leaves = np.ones((num_exits, len(whole)), np.bool_)
    for k in range(num_exits - 1):
        go_on, leave = taps[f"exits.{k}.router_logprobs"][0].T
        leaves[k] = leave > go_on
    exits = leaves.argmax(0)
    said = np.array([taps[f"exits.{k}.logits"][0, t].argmax() for t, k in enumerate(exits)])
    for turn, name in ((0, "generated"), (2, "turn2_generated")):
        end = sum(map(len, parts[: turn + 2]))
        places = slice(end - len(parts[turn + 1]) - 1, end - 1)
        assert said[places].tolist() == golden[f"{name}_ids"].tolist()
        assert exits[places].tolist() == golden[f"{name}_exit"].tolist()


def test_guesses_of_several_steps() -> None:
    """The golden drafts go on from the last token, so here they follow it."""
    decoder, golden = load("hilp")
    ids, drafts = golden["input_ids"], golden["draft_ids"]
    taps = decoder.run(np.concatenate((ids, drafts), axis=1))
    last = ids.shape[1] - 1
    for j in range(1, 5):
        assert_close(taps[f"draft.{j}.state"][:, last], golden["draft_hidden"][:, j - 1], f"{j}")
        said = taps[f"draft.{j}.logits"][:, last].argmax(-1)
        assert said.tolist() == drafts[:, j].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes(family: str) -> None:
    decoder, golden = load(family)
    ids = golden["input_ids"][:, :7]
    taps, spec = decoder.run(ids), decoder.spec
    num_rows, backbone = 7 * spec.num_streams, spec.backbone
    states = ["embedding"]
    for layer in range(backbone.num_hidden_layers):
        states += [f"layers.{layer}.attention", f"layers.{layer}.output"]
        apart = spec.num_streams if spec.is_intra_stream(layer) else 1
        shape = (2, backbone.num_key_value_heads * apart, num_rows // apart, backbone.head_dim)
        assert taps[f"key_cache.{layer}"].shape == taps[f"value_cache.{layer}"].shape == shape
    for name in states:
        assert taps[name].shape == (2, num_rows, backbone.hidden_size), name
    assert taps["hidden"].shape == (2, 7, backbone.hidden_size)
    drafts = [name for name in taps if name.startswith("draft.")]
    assert len(drafts) == (0 if spec.drafter is None else 8)
    for name in drafts:
        assert taps[name].shape[:2] == (2, 7 - int(name.split(".")[1]))


def test_golden_sets_are_all_here() -> None:
    assert len(FAMILIES) == 7
