"""Targets by name, and what their vendor says of each TensorRT."""

import dataclasses

import pytest

from quatrain.exporter.errors import BuildError
from quatrain.exporter.targets import TARGETS, find_target


def test_targets_have_the_data_sheets_numbers():
    found = {
        target.name: (target.sm, [(m.gib, m.bandwidth_gb_s) for m in target.memory])
        for target in TARGETS
    }

    assert found == {
        "a100": ("8.0", [(40, 1555), (80, 2039)]),
        "a6000": ("8.6", [(48, 768)]),
        "rtx3090": ("8.6", [(24, 936)]),
    }


def test_an_unknown_target_lists_those_there_are():
    with pytest.raises(BuildError) as error:
        find_target("sm86")

    assert "'sm86'" in error.value.asked
    assert all(target.name in error.value.fix for target in TARGETS)


def test_a100_is_outside_what_tensorrt_rtx_supports():
    target = find_target("a100")

    assert not target.is_supported("tensorrt-rtx")
    assert target.is_supported("tensorrt")
    assert "classic TensorRT" in (target.support_note("tensorrt-rtx") or "")
    assert target.support_note("tensorrt") is None


@pytest.mark.parametrize("name", ["a6000", "rtx3090"])
def test_the_others_are_supported_by_both(name):
    target = find_target(name)

    assert target.support_note("tensorrt-rtx") is None
    assert target.support_note("tensorrt") is None


def test_targets_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TARGETS[0].sm = "9.0"
