"""SVG rendered by resvg, in a font that comes along, so that a machine without fonts can do it."""

from pathlib import Path

import font_source_sans_pro
from resvg_py import svg_to_bytes

__all__ = ["render_png"]

_FAMILY = "Source Sans Pro"
_FONTS = ("SourceSansPro-Regular.ttf", "SourceSansPro-Semibold.ttf")
_ZOOM = 2  # pixels for one of the drawing's: sharp where screens are dense, and in print


def render_png(svg: str) -> bytes:
    """A PNG of a drawing by `draw_charts`, in its light colours.

    Fonts of this machine are used only for characters that the one above lacks.
    """
    folder = Path(font_source_sans_pro.font_directory)
    return svg_to_bytes(
        svg,
        zoom=_ZOOM,
        font_files=[str(folder / name) for name in _FONTS],
        font_family=_FAMILY,
        sans_serif_family=_FAMILY,
    )
