"""Figures that become inline SVG: text that stays text, colours that follow the page, ids that no other figure has."""

import re
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any
from xml.etree import ElementTree

from tpufeed.diagnosis.pages.summary import without_controls
from tpufeed.errors import MissingExtraError

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path
except ImportError as error:
    raise MissingExtraError("matplotlib", "report") from error

WIDTH_PX = 340  # of a figure: on the narrowest phones it is shown nearly as it is
FONT_PX = 11.5
LABEL_PX = 12.0

# What matplotlib draws in one of these colours takes the page's variable instead, light or dark.
INK, FAINT, GRID, PAPER = "#00f001", "#00f002", "#00f003", "#00f004"
WAIT, SYNC, COMPUTE, RUN = "#00f005", "#00f006", "#00f007", "#00f00b"
BAND, CHOSEN, PREDICTED = "#00f008", "#00f009", "#00f00a"
VARIABLES = {
    INK: "--ink",
    FAINT: "--faint",
    GRID: "--grid",
    PAPER: "--card",
    WAIT: "--wait",
    SYNC: "--sync",
    COMPUTE: "--compute",
    RUN: "--run",
    BAND: "--band",
    CHOSEN: "--chosen",
    PREDICTED: "--predicted",
}

_POINTS_AN_INCH = 72  # matplotlib's SVG has a unit a point: so a figure's unit is a CSS pixel
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_SETTINGS = {
    "axes.edgecolor": FAINT,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": _POINTS_AN_INCH,
    "figure.facecolor": "none",
    "font.family": ["DejaVu Sans"],  # the one that comes with matplotlib
    "font.size": FONT_PX,
    "axes.labelsize": FONT_PX,
    "hatch.linewidth": 1.2,
    "legend.fontsize": FONT_PX,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "tpufeed",
    "text.color": INK,
    "text.parse_math": False,  # a $ in a label is a $
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": FONT_PX,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": FONT_PX,
}


@contextmanager
def settings() -> Iterator[None]:
    """Figures are made and written within it. The user's own settings neither count nor change."""
    with warnings.catch_warnings(), matplotlib.rc_context():
        warnings.simplefilter("ignore")  # of glyphs that our font lacks: the browser's fonts may have them
        ours: dict[Any, Any] = {**matplotlib.rcParamsDefault, **_SETTINGS}
        del ours["backend"]
        matplotlib.rcParams.update(ours)
        yield


def make_figure(height_px: float) -> Figure:
    """A figure of `WIDTH_PX` whose axes are to be placed with `place_axes`."""
    figure = Figure(figsize=(WIDTH_PX / _POINTS_AN_INCH, height_px / _POINTS_AN_INCH))
    FigureCanvasSVG(figure)
    return figure


def place_axes(figure: Figure, left: float, top: float, right: float, bottom: float) -> Axes:
    """Axes with margins in pixels around them."""
    height = figure.get_figheight() * _POINTS_AN_INCH
    size = (WIDTH_PX - left - right) / WIDTH_PX, (height - top - bottom) / height
    return figure.add_axes((left / WIDTH_PX, bottom / height, *size))


def to_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """The figure as an `<svg>` for a page.

    Args:
        figure: drawn within `settings`.
        name: of letters, digits and "-"; starts all its ids.
        title: and
        description: what it is for those who do not see it.
    """
    file = BytesIO()
    figure.savefig(file, format="svg")
    root = ElementTree.fromstring(file.getvalue())
    for child in list(root):
        if child.tag.endswith("metadata"):
            root.remove(child)
    for parent in list(root.iter()):
        for style in [child for child in parent if child.tag == f"{_SVG}style"]:
            parent.remove(style)  # it is for all of a page; the page has it for its figures
        parent.tag = parent.tag.removeprefix(_SVG)
        parent.attrib = {
            key.removeprefix(_LINK): _adapt(key.removeprefix(_LINK), value, name)
            for key, value in parent.attrib.items()
        }
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-labelledby": f"{name}-title {name}-desc"}
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, id=f"{name}-{tag}")
        element.text = without_controls(text)
        root.insert(place, element)
    return ElementTree.tostring(root, "unicode")


def fit(text: str, width_px: float, size_px: float = FONT_PX) -> str:
    """`text` on one line, or its start and end, so that it is no wider than `width_px`."""
    text = without_controls(" ".join(text.split()))
    if len(text) > 2 * width_px:  # measuring what cannot fit takes long
        text = f"{text[: int(width_px)]}…{text[-int(width_px) :]}"
    if width_of(text, size_px) <= width_px:
        return text
    low, high = 0, len(text)
    while low < high:  # the longest that fits
        kept = (low + high + 1) // 2
        low, high = (kept, high) if width_of(_shorten(text, kept), size_px) <= width_px else (low, kept - 1)
    return _shorten(text, low)


def width_of(text: str, size_px: float = FONT_PX) -> float:
    """Pixels; of East Asian letters, which the font lacks, an em each."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    narrow = "".join(letter for letter in text if unicodedata.east_asian_width(letter) not in "WF")
    if not narrow.strip():
        return wide * size_px
    font = FontProperties(["DejaVu Sans"], size=size_px)
    width, _, _ = text_to_path.get_text_width_height_descent(narrow, font, False)
    return wide * size_px + float(width)


def say_short(value: float) -> str:
    """A rate in a few letters: 950, 1.7k, 24k, 1.1M."""
    for least, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * least:
            return f"{value / least:.3g}{letter}"
    return f"{value:.3g}"


def _shorten(text: str, kept: int) -> str:
    end = kept // 2
    return f"{text[: kept - end]}…{text[len(text) - end :]}"


def _adapt(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    if key in ("d", "x", "y", "transform"):  # a tenth of a pixel will do
        return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), value)
    value = value.replace("url(#", f"url(#{name}-")
    return re.sub("|".join(VARIABLES), lambda found: f"var({VARIABLES[found[0]]})", value)
