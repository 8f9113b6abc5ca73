"""Defaults that fit: on a GPU made smaller, since the samples fit any real one."""

from dataclasses import replace
from pathlib import Path

import pytest

from quatrain.exporter import targets
from quatrain.exporter.capacity import fit, plan_capacity
from quatrain.exporter.cli import main
from quatrain.exporter.errors import ExportError
from quatrain.exporter.export import plan_export
from quatrain.exporter.targets import Memory, find_target

SAMPLE = Path(__file__).parents[3] / "samples" / "checkpoints" / "topics-dense"
# The sample has 2.2 MB of weights, up to 8 MB of activations, and 12 kB of cache for 4 tokens: this
# is enough for about 560 of each sequence.
SMALL = 16_300_000


def shrink_targets(monkeypatch, num_bytes):
    """Leave so much room on every GPU."""
    monkeypatch.setattr(fit, "RESERVED_BYTES", (1 << 30) - num_bytes)
    small = [replace(target, memory=(Memory(1, 900),)) for target in targets.TARGETS]
    monkeypatch.setattr(targets, "TARGETS", tuple(small))


def test_what_fits_is_left_alone():
    plan = plan_export(SAMPLE, targets=["a100", "rtx3090"])

    assert plan.max_seq_len == 1024 and plan.room is None


def test_a_length_left_open_is_what_the_tightest_target_has_room_for(monkeypatch, capfd):
    shrink_targets(monkeypatch, SMALL)

    plan = plan_export(SAMPLE, targets=["a6000"])

    assert 500 < plan.max_seq_len < 600 and plan.max_seq_len % 8 == 0
    assert plan.room is not None and f"max_seq_len is {plan.max_seq_len}, not 1024" in plan.room
    assert main(["export", str(SAMPLE), "-o", "unused", "--target", "a6000", "--dry-run"]) == 0
    assert plan.room in capfd.readouterr().out
    # It does fit, and much more would not (shorter ones take less for masks, too).
    again = plan_export(SAMPLE, targets=["a6000"], max_seq_len=plan.max_seq_len)
    assert again.room is None
    assert plan_export(SAMPLE, targets=["a6000"], max_seq_len=plan.max_seq_len + 96).room


def test_without_targets_nothing_is_clipped(monkeypatch):
    shrink_targets(monkeypatch, SMALL)

    assert plan_export(SAMPLE).max_seq_len == 1024


def test_a_length_that_was_asked_for_stays_with_a_warning(monkeypatch):
    shrink_targets(monkeypatch, SMALL)

    plan = plan_export(SAMPLE, targets=["a6000"], max_seq_len=800)

    assert plan.max_seq_len == 800
    assert plan.room is not None and "no room for 4 sequences of 800 tokens" in plan.room


def test_a_target_without_room_for_anything_useful_is_refused(monkeypatch):
    shrink_targets(monkeypatch, 5_000_000)

    with pytest.raises(ExportError, match="no room for 4 sequences"):
        plan_export(SAMPLE, targets=["rtx3090"])


def test_the_targets_are_as_they_were():
    assert find_target("rtx3090").memory == (Memory(24, 936),)
    assert plan_capacity.__module__ == "quatrain.exporter.capacity.capacity"
