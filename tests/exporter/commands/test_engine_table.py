"""Engines of a bundle, as a user counts and reads them."""

import pytest

from quatrain.exporter.commands.engine_table import count_engines, make_engine_table
from quatrain.exporter.targets import find_target
from quatrain.runtime.manifest import Engine

KERNELS = "no fused attention: single operations take its place"


def make_engine(graph: str, target: str, note: str | None) -> Engine:
    sm = find_target(target).sm
    return Engine(
        graph=graph,
        target=target,
        sm=sm,
        flavour="tensorrt-rtx",
        version="1",
        path=f"engines/{graph}.sm{sm}.engine",
        bytes=1,
        build_seconds=1.0,
        profiles=[],
        plugins={},
        vendor_supported=target != "a100",
        note=note,
    )


@pytest.fixture
def engines() -> list[Engine]:
    """Two graphs, of which the first has attention and no kernel for it."""
    support = find_target("a100").support_note("tensorrt-rtx")
    return [
        make_engine("segment_0", "a100", f"{support}; {KERNELS}"),
        make_engine("segment_0", "a6000", KERNELS),
        make_engine("segment_0", "rtx3090", KERNELS),
        make_engine("head", "a100", support),
        make_engine("head", "a6000", None),
        make_engine("head", "rtx3090", None),
    ]


def test_files_are_counted_and_not_their_targets(engines: list[Engine]) -> None:
    assert count_engines(engines) == "4 engine files for 3 targets"
    assert count_engines(engines[:1]) == "1 engine file for 1 target"
    assert len(make_engine_table(engines).rows) == 4


def test_a_note_is_shown_once(engines: list[Engine]) -> None:
    support = find_target("a100").support_note("tensorrt-rtx")
    notes = make_engine_table(engines).notes
    assert list(notes) == [f"a100: {support}", f"a100, a6000, rtx3090: {KERNELS}"]
    other = make_engine("head", "a100", "what an older quatrain said; of it")
    assert list(make_engine_table([other]).notes) == ["a100: what an older quatrain said; of it"]
