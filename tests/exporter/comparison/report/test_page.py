"""The page: whole, well-formed, with nothing outside of it, and every number beside its plot."""

import re
from html.parser import HTMLParser

import pytest
from tests.exporter.comparison.report.made_up import LAYERS, RUNNERS, make_comparison

from quatrain.exporter.comparison import Comparison, RunnerInfo
from quatrain.exporter.comparison.report import make_page

VOID = {"meta", "line", "rect", "circle", "polyline"}


class Page(HTMLParser):
    """Reads a page; every element that is opened must be closed in turn."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID or (tag == "rect" and self.get_starttag_text()[-2] != "/"):  # type: ignore[index]
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            assert tag in VOID, f"</{tag}> in {self.open}"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("broken", [False, True])
def test_the_page_is_well_formed_and_needs_nothing_else(broken: bool) -> None:
    text = make_page(make_comparison(broken=broken))
    page = Page(text)
    assert page.open == []
    for tag, attributes in page.elements:
        assert tag not in {"script", "link", "img", "iframe"}
        assert not attributes.keys() & {"src", "href", "srcset", "data"}
    assert "url(" not in text and "@import" not in text and "default-src 'none'" in text
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_every_plot_has_a_title_a_description_and_its_numbers() -> None:
    page = Page(make_page(make_comparison()))
    charts = [a for tag, a in page.elements if tag == "svg"]
    # by layer, KL, a histogram for each runner, exits, selection
    assert len(charts) == 4 + len(RUNNERS)
    ids = {attributes.get("id") for _, attributes in page.elements}
    for chart in charts:
        assert chart["role"] == "img"
        assert set((chart["aria-labelledby"] or "").split()) <= ids
    figures = sum(tag == "figure" for tag, _ in page.elements)
    assert figures == len(charts)
    assert sum(tag == "summary" for tag, _ in page.elements) == figures + 1
    assert "deployment: 11.0%, 20.0%, 29.0%, 40.0%" in "".join(page.texts)


def test_a_page_says_what_failed_and_where() -> None:
    text = "".join(Page(make_page(make_comparison(broken=True))).texts)
    assert "Failed" in text and "2 of 8 checks failed (logits, not finite)" in text
    assert "layers.3.attention of deployment at position 7" in text
    assert "no GPU here" in text
    passed = make_page(make_comparison())
    assert "Passed" in passed and "FAILED" not in passed and 'class="alarm"' not in passed


def test_names_are_text_and_nothing_else() -> None:
    page = Page(make_page(make_comparison(broken=True)))
    assert "b" not in {tag for tag, _ in page.elements}
    assert any("bundle<b>&" in text for text in page.texts)


def test_a_page_without_plots() -> None:
    skipped = [RunnerInfo("tensorrt", "skipped", "no GPU here")]
    text = make_page(Comparison("bundle", "checkpoint", "as it is", "dense", [], skipped, []))
    assert "Failed" in text and "Nothing was compared" in text
    assert "<figure" not in text and "Plots" not in text


def test_layers_are_in_order() -> None:
    text = make_page(make_comparison())
    chart = re.search(r"<svg[^>]*plot-layers.*?</svg>", text, re.DOTALL)
    assert chart is not None
    labels = re.findall(r">(\d\.output)<", chart.group())
    assert labels == [f"{layer}.output" for layer in range(LAYERS)][: len(labels)] and labels


def test_a_runner_has_the_same_colour_in_every_plot() -> None:
    charts = re.findall(r"<svg.*?</svg>", make_page(make_comparison()), re.DOTALL)
    for runner, color in (("fp32", "s0"), ("deployment", "s1"), ("reference", "s2")):
        found = [re.findall(rf'(s\d)"/>\n<text [^>]*>{runner}<', chart) for chart in charts]
        assert {name for names in found for name in names} == {color}
