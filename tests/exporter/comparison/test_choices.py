"""Decisions that rounding may turn over: active channels, exits, tokens of equal score."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.exporter.comparison.bundles import export, find_checkpoint

from quatrain.exporter.comparison import compare_bundle
from quatrain.exporter.comparison.bisection import bisect
from quatrain.exporter.comparison.cases import Case
from quatrain.exporter.comparison.distance import LARGEST, measure
from quatrain.exporter.comparison.greedy import Generated, judge_generated
from quatrain.exporter.comparison.tolerances import TOLERANCES
from quatrain.exporter.reference import feed_forward

VALID = np.ones((1, 2), np.bool_)


def test_one_choice_turned_over_in_float32_is_no_fault(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two channels with as good as equal scores either may run; what follows is judged by the
    channels that did."""
    bundle, checkpoint = export(root, "bank_topk", tmp_path / "bundle"), "bank_topk"
    right = feed_forward.choose_channels

    def choose(scores: NDArray[np.float32], bank_size: int, top_k: int) -> NDArray[np.bool_]:
        chosen = right(scores, bank_size, top_k)
        if scores.shape[1] > 50:
            first = chosen[0, 50, :bank_size]
            out, into = np.flatnonzero(first)[0], np.flatnonzero(~first)[0]
            first[[out, into]] = first[[into, out]]
        return chosen

    monkeypatch.setattr(feed_forward, "choose_channels", choose)
    comparison = compare_bundle(bundle, find_checkpoint(root, checkpoint), max_tokens=64)
    assert comparison.passed, [*comparison.failures, *comparison.divergences]
    (selection,) = [check for check in comparison.checks if check.name == "active channels"]
    assert isinstance(selection.value, float) and 0.999 < selection.value < 1


def test_channels_beyond_those_wanted_count() -> None:
    wanted = np.arange(8).reshape(1, 2, 4) % 2 == 0
    more = np.ones((1, 2, 4), np.float32)
    assert measure("selection", wanted, wanted.astype(np.float32), VALID).error == 0
    assert measure("selection", wanted, more, VALID).error == 1.0
    assert measure("selection", wanted, 0 * more, VALID).error == 1.0
    swapped = np.array([[[0, 1, 1, 0], [1, 0, 1, 0]]], np.float32)
    assert measure("selection", wanted, swapped, VALID).error == pytest.approx(0.25)


@pytest.mark.parametrize(("turned", "passes"), [(0, True), (1, True), (2, False)])
def test_one_choice_of_few_may_be_a_tie(turned: int, passes: bool) -> None:
    """A share says little of forty channels."""
    wanted = np.zeros((1, 2, 40), np.bool_)
    wanted[..., :20] = True
    found = wanted.astype(np.float32)
    found[0, 1, :turned], found[0, 1, 39 : 39 - turned : -1] = 0, 1
    name = "layers.0.active_channels"
    case = Case("batch", "", (0,), (2,), (2,), 2)
    bisection = bisect(
        "fp32", "float32", case, {name: wanted[:, :, None]}, {name: found[:, :, None]}
    )
    check = bisection.check_selection()
    assert check is not None
    assert check.passed == passes
    assert (bisection.find_divergence() is None) == passes


@pytest.mark.parametrize("side", [0, 1])
def test_what_either_side_cannot_say_is_not_finite(side: int) -> None:
    arrays = [np.ones((1, 2, 3), np.float32) for _ in range(2)]
    arrays[side][0, 1, 2] = np.nan
    distance = measure("logits", arrays[0], arrays[1], VALID)
    assert (distance.error, distance.num_not_finite) == (LARGEST, 1)
    assert distance.locate_worst() == (0, 1)


def make_exits(ahead: float) -> dict[str, NDArray[np.float32]]:
    """Two exits that say token 0 and token 1, the router preferring the first by `ahead`."""
    router = np.array([[[-0.7, -0.7 + ahead]]], np.float32)
    first, last = np.array([[[3.0, 0.0]]], np.float32), np.array([[[0.0, 5.0]]], np.float32)
    return {"exits.0.router_logprobs": router, "exits.0.logits": first, "exits.1.logits": last}


@pytest.mark.parametrize(
    ("ahead", "token", "passes"),
    [
        (0.1, 0, True),
        (0.1, 1, True),
        (-0.1, 0, True),
        (-0.1, 1, True),
        (1, 1, False),
        (-1, 0, False),
    ],
)
def test_either_exit_will_do_where_the_router_is_undecided(
    ahead: float, token: int, passes: bool
) -> None:
    generated = Generated(np.array([[0, token]]), 1)
    check, flips = judge_generated(
        generated, make_exits(ahead), "deployment", TOLERANCES["bfloat16"]
    )
    assert (check.passed, not flips) == (passes, passes)
    strict, _ = judge_generated(generated, make_exits(ahead), "fp32", TOLERANCES["float32"])
    assert strict.passed == (token == (0 if ahead > 0 else 1))
