"""The picture is XML, and its marks are where the numbers say."""

import math
from xml.etree import ElementTree

import pytest

from quatrain.exporter.charts import Chart, Series, draw_chart, draw_charts

SVG = "{http://www.w3.org/2000/svg}"


def chart(
    *series: Series, is_bars: bool = False, top: float | None = None, is_log: bool = False
) -> Chart:
    places = [f"<{i}>" for i in range(len(series[0].values))]
    return Chart("a & b", "x", "y", places, series, is_bars, top, None, is_log)


def find(root: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return [element for element in root.iter(f"{SVG}{tag}") if element.get("width") != "100%"]


def test_bars_are_as_high_as_their_numbers() -> None:
    drawn = chart(Series("s", [1.0, 0.5, None, 0.25, math.nan]), is_bars=True, top=1.0)
    bars = [bar for bar in find(ElementTree.fromstring(draw_charts([drawn])), "rect") if len(bar)]
    heights = [float(bar.get("height", "")) for bar in bars]
    assert [height / heights[0] for height in heights] == pytest.approx([1, 0.5, 0.25], abs=0.01)


def test_lines_go_through_their_numbers() -> None:
    root = ElementTree.fromstring(
        draw_charts([chart(Series("s", [10.0, 30.0, 20.0]), Series("t", [20.0, 20.0, 20.0]))])
    )
    heights = [float(circle.get("cy", "")) for circle in find(root, "circle")]
    assert heights[0] > heights[2] > heights[1]
    assert heights[2] == heights[3] == heights[5]
    assert heights[0] - heights[2] == pytest.approx(heights[2] - heights[1])
    assert len(find(root, "polyline")) == 2


def test_a_log_axis_has_equal_ratios_equally_far_apart() -> None:
    drawn = chart(Series("s", [1e-6, 1e-4, 1e-2, 0.0, math.inf]), is_log=True)
    root = ElementTree.fromstring(draw_charts([drawn]))
    low, middle, high, zero = (float(c.get("cy", "")) for c in find(root, "circle"))
    assert low - middle == pytest.approx(middle - high)
    assert zero == low > high


@pytest.mark.parametrize("values", [[5.0, 5.0], [0.0], [1e-7, 2e-7], [1e30, 1e-30], [None], []])
def test_any_numbers_can_be_drawn(values: list[float | None]) -> None:
    for is_bars, is_log in ((False, False), (True, False), (False, True), (True, True)):
        text = draw_charts([chart(Series("s", values), is_bars=is_bars, is_log=is_log)] * 2)
        root = ElementTree.fromstring(text)
        assert "nan" not in text and "inf" not in text
        assert [t.text for t in find(root, "text")].count("a & b") == 2


def test_many_places_do_not_write_over_each_other() -> None:
    root = ElementTree.fromstring(draw_charts([chart(Series("s", [1.0] * 200))]))
    assert 10 < sum(str(t.text).startswith("<") for t in find(root, "text")) <= 24


def test_names_that_xml_cannot_hold_are_shown_by_their_codes() -> None:
    name = "a\x01\n\udc80 <é&"
    root = ElementTree.fromstring(draw_charts([chart(Series(name, [1.0]), is_bars=True)]))
    shown = [t.text for t in find(root, "text") if t.text and t.text.startswith("a\\")]
    assert shown == ["a\\x01\\n\\udc80 <é&"]


def test_a_legend_of_many_long_names_stays_in_the_frame_and_shows_their_ends() -> None:
    names = [f"{'/long' * 30}/{number}" for number in range(9)]
    drawn = chart(*(Series(name, [1.0]) for name in names), is_bars=True)
    root = ElementTree.fromstring(draw_charts([drawn, drawn]))
    shown = [t for t in find(root, "text") if str(t.text).startswith("\N{HORIZONTAL ELLIPSIS}")]
    assert [str(t.text)[-2:] for t in shown] == [f"/{number}" for number in range(9)] * 2
    assert all(len(str(t.text)) * 6.6 + float(t.get("x", "")) < 880 for t in shown)
    rows = [float(t.get("y", "")) for t in shown[:9]]
    bars = [float(bar.get("y", "")) for bar in find(root, "rect") if len(bar)]
    assert sorted(set(rows)) == rows and max(rows) < min(bars)
    frames = [g.get("transform", "") for g in root.iter(f"{SVG}g")]
    bottom = max(float(t.get("y", "")) for t in find(root, "text"))
    assert float(frames[1].split()[1].rstrip(")")) > bottom


def test_a_chart_on_a_page_has_a_name_and_a_description() -> None:
    root = ElementTree.fromstring(
        draw_chart(chart(Series("s", [1.0])), "one").replace("svg ", f"svg xmlns='{SVG[1:-1]}' ", 1)
    )
    assert (root.get("role"), root.get("aria-labelledby")) == ("img", "one-title one-desc")
    named = {element.get("id"): element.text for element in root.iter() if element.get("id")}
    assert named == {"one-title": "a & b", "one-desc": "y by x"}
