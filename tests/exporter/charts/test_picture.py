"""Charts as files: what can be drawn is known beforehand, and a PNG shows what the SVG says."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from quatrain.exporter.charts import Chart, Series
from quatrain.exporter.charts.picture import check_picture, write_picture
from quatrain.runtime.errors import RequestError

BARS = Chart("Decoding", "x", "y", ["one", "two"], [Series("s", [1.0, 2.0])], is_bars=True)
BLUE = (0x42, 0x69, 0xD0)  # of the first series on light paper


def test_a_png_has_the_bars_colours_and_letters_of_the_svg(tmp_path: Path) -> None:
    path, svg = tmp_path / "chart.PNG", tmp_path / "chart.svg"
    for file in (path, svg):
        check_picture(file, "draw it")
        write_picture(file, [BARS], "draw it")
    with Image.open(path) as image:
        assert image.format == "PNG"
        pixels = np.asarray(image.convert("RGBA"))
    assert pixels.shape == (640, 1760, 4) and (pixels[:, :, 3] == 255).all()
    blue = (pixels[:, :, :3] == BLUE).all(axis=-1)
    blue[:100] = False  # the legend
    for bar in find_bars(svg):
        rows, columns = np.nonzero(
            blue[:, int(2 * bar["x"]) - 2 : int(2 * (bar["x"] + bar["width"])) + 2]
        )
        assert np.ptp(columns) + 1 == pytest.approx(2 * bar["width"], abs=2)
        assert np.ptp(rows) + 1 == pytest.approx(2 * bar["height"], abs=2)
    title = pixels[:56, 152:400, 0]
    assert 500 < (title < 128).sum() < 3000  # eight letters; without a font there are none


def find_bars(svg: Path) -> list[dict[str, float]]:
    rects = ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}rect")
    names = ("x", "width", "height")
    return [{name: float(rect.attrib[name]) for name in names} for rect in rects if len(rect)]


def test_without_its_packages_a_png_is_refused_and_an_svg_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "quatrain.exporter.charts.png", raising=False)
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(RequestError) as caught:
        check_picture(tmp_path / "chart.png", "draw it")
    assert "resvg_py is not installed" in caught.value.found
    assert caught.value.fix == "pip install 'quatrain[png]', or name it chart.svg"
    check_picture(tmp_path / "chart.svg", "draw it")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("chart.pdf", "drawn as .svg or .png, and this is .pdf"),
        ("chart", "neither"),
        (".png", "neither"),
        ("missing/chart.svg", "no folder"),
        ("folder.svg", "it is a folder"),
    ],
)
def test_what_could_not_be_written_is_refused_beforehand(
    tmp_path: Path, name: str, found: str
) -> None:
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(RequestError) as caught:
        check_picture(tmp_path / name, "draw it")
    assert caught.value.asked == "draw it" and found in caught.value.found
