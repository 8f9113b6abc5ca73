"""A gate that lets a broken graph through is none: each of these must fail, and be found."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.exporter.comparison.bundles import export, find_checkpoint
from tests.exporter.comparison.mutations import (
    Edit,
    choose_channels,
    keep_stale_row,
    lose_numbers,
    mutate,
    reverse_streams,
    shift_mask,
    square_in_16_bits,
    swap_gate_and_up,
    use_rope_base,
)

from quatrain.exporter.comparison import Comparison, Divergence, compare_bundle

Compare = Callable[..., Comparison]


@pytest.fixture(scope="module")
def bundles(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Bundles to break, each exported once; drafters are left out."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            target = tmp_path_factory.mktemp(name) / "bundle"
            made[name] = export(root, name, target, drafter=False, dtype="float16")
        return made[name]

    return get


@pytest.fixture
def compare_broken(root: Path, bundles: Callable[[str], Path], tmp_path: Path) -> Compare:
    """Compares a bundle after an edit."""

    def run(name: str, edit: Edit, runner: str = "fp32") -> Comparison:
        variant = "cpu" if runner == "fp32" else "engine"
        broken = mutate(bundles(name), tmp_path / "broken", edit, variant)
        comparison = compare_bundle(
            broken, find_checkpoint(root, name), runners=[runner], max_tokens=24, decode_steps=6
        )
        assert not comparison.passed
        return comparison

    return run


def find_first(comparison: Comparison) -> Divergence:
    (divergence,) = comparison.divergences
    return divergence


def test_the_bundles_are_fine_before(root: Path, bundles: Callable[[str], Path]) -> None:
    for name in ("hilp", "bank_topk", "hidden_decoding"):
        for runner in ("fp32", "deployment"):
            comparison = compare_bundle(
                bundles(name), find_checkpoint(root, name), runners=[runner], max_tokens=24
            )
            assert comparison.passed, comparison.failures


def test_a_wrong_rope_base(compare_broken: Compare) -> None:
    found = find_first(compare_broken("hilp", use_rope_base(500.0)))
    # Position 0 is turned by no angle.
    assert (found.tensor, found.layer, found.position) == ("key_cache.0", 0, 1)


def test_swapped_gate_and_up(compare_broken: Compare) -> None:
    comparison = compare_broken("hilp", swap_gate_and_up(2))
    found = find_first(comparison)
    assert (found.tensor, found.layer, found.position) == ("layers.2.output", 2, 0)
    growth = {error.tensor: error.relative for error in comparison.layer_errors}
    assert growth["layers.2.attention"] < 1e-5 < growth["layers.3.output"]


def test_a_stale_key_in_the_cache(compare_broken: Compare) -> None:
    comparison = compare_broken("hilp", keep_stale_row(1, 5))
    found = find_first(comparison)
    assert (found.tensor, found.layer, found.position) == ("key_cache.1", 1, 5)
    (caches,) = [check for check in comparison.failures if check.name == "key caches"]
    assert "key_cache.1" in caches.detail


def test_a_mask_shifted_by_one(compare_broken: Compare) -> None:
    found = find_first(compare_broken("hilp", shift_mask()))
    assert (found.tensor, found.layer) == ("layers.0.attention", 0)


@pytest.mark.parametrize("runner", ["fp32", "deployment"])
def test_one_active_channel_less(compare_broken: Compare, runner: str) -> None:
    comparison = compare_broken("bank_topk", choose_channels(15), runner)
    failed = {check.name for check in comparison.failures}
    assert "active channels" in failed
    found = find_first(comparison)
    assert (found.tensor, found.layer) == ("layers.0.active_channels", 0)
    assert comparison.plots.selection_overlap[runner][0] == pytest.approx(15 / 16, abs=0.01)


def test_streams_in_the_wrong_order(compare_broken: Compare) -> None:
    found = find_first(compare_broken("hidden_decoding", reverse_streams()))
    assert (found.tensor, found.layer, found.position) == ("embedding", None, 0)


def test_numbers_that_are_none_are_named_with_their_layer(compare_broken: Compare) -> None:
    comparison = compare_broken("hilp", lose_numbers("layers.2.attention"))
    found = find_first(comparison)
    assert (found.tensor, found.layer, found.kind) == ("layers.2.attention", 2, "not finite")
    finite = next(check for check in comparison.checks if check.name == "finite values")
    assert not finite.passed


def test_a_norm_that_overflows_in_float16(compare_broken: Compare) -> None:
    comparison = compare_broken("hilp", square_in_16_bits(2, 2000.0), "deployment")
    found = find_first(comparison)
    assert (found.layer, found.runner) == (2, "deployment")
    assert found.tensor == "key_cache.2"
