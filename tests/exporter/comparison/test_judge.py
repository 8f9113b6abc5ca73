"""What is measured, where it is found, and what shapes may be held together."""

import numpy as np
import pytest

from quatrain.exporter.comparison.cases import Case
from quatrain.exporter.comparison.distance import LARGEST, measure
from quatrain.exporter.comparison.judge import Judge
from quatrain.exporter.comparison.result import Check
from quatrain.exporter.comparison.tolerances import find_kind
from quatrain.exporter.comparison.trace import Trace, find_layer, match_shapes, split_tokens
from quatrain.exporter.errors import ComparisonError

CASE = Case("batch", "", (0, 1), (4, 2), (2, 1), 2)
TOKENS = np.array([[0, 1, 2, 3], [3, 2, 1, 0]])


def make_trace() -> Trace:
    rng = np.random.default_rng(0)
    return {
        "key_cache.0": rng.standard_normal((2, 4, 1, 2, 8)).astype(np.float32),
        "logits": rng.standard_normal((2, 4, 5)).astype(np.float32),
    }


def judge(found: Trace, dtype: str = "float32") -> dict[str, Check]:
    judged = Judge("fp32", dtype)
    judged.add(CASE, TOKENS, make_trace(), found)
    return {check.name: check for check in judged.list_checks()}


def test_what_is_the_same_passes() -> None:
    checks = judge(make_trace())
    assert all(check.passed for check in checks.values())
    assert checks["top-1 agreement"].value == 1.0


def test_what_stands_behind_a_sequence_is_nothing() -> None:
    found = make_trace()
    for array in found.values():
        array[1, 2:] = np.nan
    assert all(check.passed for check in judge(found).values())


def test_an_error_is_found_where_it_is() -> None:
    found = make_trace()
    found["key_cache.0"][1, 1, 0, 1, 3] += 1
    checks = judge(found)
    assert not checks["key caches"].passed
    assert checks["key caches"].detail == "key_cache.0, case batch, sequence 1, position 1"
    assert checks["logits"].passed


def test_a_flip_is_counted_and_a_tie_is_none_in_16_bits() -> None:
    reference = make_trace()["logits"]
    best = int(reference[0, 3].argmax())
    found = make_trace()
    found["logits"][0, 3, best] -= 10
    assert judge(found)["top-1 agreement"].value == pytest.approx(5 / 6)
    assert not judge(found)["KL max"].passed
    first, second = np.argsort(-reference[0, 3])[:2]
    found = make_trace()
    gap = reference[0, 3, first] - reference[0, 3, second]
    found["logits"][0, 3, second] += gap + 0.01
    is_tie = gap <= 0.4
    assert (judge(found, "bfloat16")["top-1 agreement"].value == 1.0) == is_tie
    assert judge(found)["top-1 agreement"].value < 1.0


def test_nan_fails_and_is_named() -> None:
    found = make_trace()
    found["logits"][0, 1, 2] = np.nan
    checks = judge(found)
    assert checks["finite values"].value == 1
    assert checks["finite values"].detail == "first in logits, case batch, sequence 0, position 1"
    assert checks["logits"].value == "not finite"
    assert not checks["KL mean"].passed


def test_errors_are_relative_to_the_largest_of_the_reference() -> None:
    reference = np.array([[[100.0, 1.0], [2.0, 3.0]]], np.float32)
    found = reference + np.float32(0.5)
    distance = measure("logits", reference, found, np.array([[True, True]]))
    assert (distance.error, distance.reference_max) == (pytest.approx(0.005), 100.0)
    small = measure("log_probs", reference * 1e-3, reference * 0, np.array([[True, True]]))
    assert small.error == pytest.approx(0.1)
    found[0, 1, 0] = np.inf
    assert measure("logits", reference, found, np.array([[True, True]])).error == LARGEST
    assert measure("logits", reference, found, np.array([[True, False]])).error < 1


def test_a_bundle_may_keep_the_last_stream_only_and_nothing_else() -> None:
    rows = np.arange(2 * 6 * 3, dtype=np.float32).reshape(2, 6, 3)
    reference = split_tokens({"layers.1.output": rows}, 3)["layers.1.output"]
    assert reference.shape == (2, 3, 2, 3)
    expected, _ = match_shapes("layers.1.output", reference, reference[:, :, 1:])
    np.testing.assert_array_equal(expected[0, :, 0], rows[0, 1::2])
    cache = np.arange(2 * 4 * 3 * 2, dtype=np.float32).reshape(2, 4, 3, 2)
    split = split_tokens({"key_cache.1": cache}, 3)["key_cache.1"]
    expected, _ = match_shapes("key_cache.1", split, split[:, :, :, 2:])
    np.testing.assert_array_equal(expected[0, 1, 0], cache[0, 2:, 1])
    with pytest.raises(ComparisonError, match=r"shape \[2, 3, 2, 4\] against \[2, 3, 2, 3\]"):
        match_shapes("layers.1.output", reference, np.zeros((2, 3, 2, 4), np.float32))
    with pytest.raises(ComparisonError, match="compare logits"):
        match_shapes("logits", np.zeros((1, 2, 5)), np.zeros((1, 2, 6)))


def test_a_name_says_what_a_tensor_is() -> None:
    kinds = {
        "logits": "logits",
        "exits.2.logits": "logits",
        "exits.2.state": "state",
        "hidden": "state",
        "exits.0.router_logprobs": "log_probs",
        "mixture_logprobs": "log_probs",
        "layers.3.active_channels": "selection",
        "layers.3.attention": "residual",
        "embedding": "residual",
        "value_cache.0": "cache",
        "draft.1.logits": "draft",
    }
    assert {name: find_kind(name) for name in kinds} == kinds
    assert [find_layer(name) for name in ("layers.12.output", "key_cache.3", "logits")] == [
        12,
        3,
        None,
    ]


def test_nan_of_the_checkpoint_is_said_to_be_its_own() -> None:
    reference, found = make_trace(), make_trace()
    reference["key_cache.0"][0, 2] = found["key_cache.0"][0, 2] = np.nan
    judged = Judge("fp32", "float32")
    judged.add(CASE, TOKENS, reference, found)
    finite = judged.list_checks()[0]
    assert not finite.passed
    assert finite.detail.endswith("position 2, as in the checkpoint itself")


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_perplexity_of_what_no_model_would_write(scale: float) -> None:
    """Where logits of any size stand at the tokens, so do rounding errors of that size."""
    rng = np.random.default_rng(1)
    reference = {"logits": (scale * rng.standard_normal((2, 4, 5))).astype(np.float32)}
    found = {"logits": reference["logits"] * np.float32(1 + 2e-3)}
    judged = Judge("deployment", "bfloat16")
    judged.add(CASE, TOKENS, reference, found)
    checks = {check.name: check for check in judged.list_checks()}
    assert checks["perplexity difference"].passed
    found = {"logits": reference["logits"] * np.float32(1.2)}
    judged = Judge("deployment", "bfloat16")
    judged.add(CASE, TOKENS, reference, found)
    checks = {check.name: check for check in judged.list_checks()}
    assert not checks["perplexity difference"].passed
