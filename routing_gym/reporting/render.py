"""Figures as inline SVG, as PNG, and as the CSV beside them. Drawing needs matplotlib (extra `plots`)."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from routing_gym.evaluation.drawing import YARDSTICK, dress, grid, save
from routing_gym.reporting.figure import Figure, Panel

PIXELS_PER_INCH = 96
# Text is never shown smaller, px: a panel that would have to shrink further scrolls instead.
LEAST_TEXT = 9.1
SWATCH = (0.42, 0.16)
MEASURED_FONT = "DejaVu Sans"  # ships with matplotlib, and is wider than most that a browser takes
SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "routing-gym",
    "font.family": "sans-serif",
    "font.sans-serif": [MEASURED_FONT],
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    # A label may hold dollars.
    "text.parse_math": False,
}
INK = ("#000000", YARDSTICK)


def panel_svg(panel: Panel, prefix: str, called: str) -> str:
    """Return a panel as an `svg` element in the page's ink, the same for the same panel.

    Args:
        panel: to draw.
        prefix: of its ids, which are unique in the page if this is.
        called: to those who do not see it.
    """

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        _draw(panel, axes)

    return _svg(draw, panel.width, panel.height, prefix, called)


def swatch_svg(style: Mapping[str, Any], prefix: str) -> str:
    """Return a legend's line or marker as an `svg` element in the page's ink."""

    def draw(figure: Any) -> None:
        figure.add_artist(_handle(style, [0.08, 0.5, 0.92], [0.5] * 3, transform=figure.transFigure))

    return _svg(draw, *SWATCH, prefix, "")


def write_png(figure: Figure, path: Path) -> Path:
    """Draw a figure's panels on white, two to a row, with the legend below them; return the path."""
    import matplotlib

    width, height = (max(getattr(panel, size) for panel in figure.panels) for size in ("width", "height"))
    with matplotlib.rc_context(SETTINGS):
        canvas, places = grid(len(figure.panels), width, height)
        for panel, axes in zip(figure.panels, places, strict=True):
            _draw(panel, axes)
        if figure.legend:
            save(canvas, path, {label: _handle(style, [], []) for label, style in figure.legend.items()})
        else:
            canvas.savefig(path, dpi=130)
    return path


def csv_of(figure: Figure) -> str:
    """Return a figure's data as CSV; None is an empty cell."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(figure.columns)
    writer.writerows(figure.rows)
    return buffer.getvalue()


def _draw(panel: Panel, axes: Any) -> None:
    dress(axes)
    axes.set_axisbelow(True)
    panel.draw(axes)
    if panel.title:
        axes.set_title(panel.title, fontsize=10, loc="left")


def _handle(style: Mapping[str, Any], x: list[float], y: list[float], **how: Any) -> Any:
    """Return a line in a legend's style; a marker stands alone unless the style has a line too."""
    from matplotlib.lines import Line2D

    marked = {"linestyle": "none", "markevery": [1]} if style.get("marker") and "dashes" not in style else {}
    return Line2D(x, y, **{**marked, **style}, **how)


def _svg(draw: Callable[[Any], None], width: float, height: float, prefix: str, title: str) -> str:
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    buffer = io.StringIO()
    with matplotlib.rc_context(SETTINGS):
        canvas = Canvas(figsize=(width, height), layout="constrained")
        draw(canvas)
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(buffer.getvalue(), PIXELS_PER_INCH * width, prefix, title)


def _inline(text: str, pixels: float, prefix: str, title: str) -> str:
    """Return matplotlib's SVG as an element of a page: its ink is the text's, its ids are its own."""
    spared = "<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>"
    body = re.sub(spared, "", text[text.index("<svg") :], flags=re.DOTALL)
    box = re.search(r'viewBox="([^"]+)"', body)
    assert box is not None
    body = body[body.index(">") + 1 :]
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', body))
    body = re.sub(
        r' id="([^"]+)"', lambda found: f' id="{prefix}-{found[1]}"' if found[1] in used else "", body
    )
    body = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", body)
    body = re.sub("|".join(INK), "currentColor", body)
    body = re.sub(rf"'{MEASURED_FONT}'[^;\"]*", "sans-serif", body)
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: [^;\"]*?([\d.]+)px", body)]
    body = re.sub(r"\s*\n\s*", "\n", body)
    points = pixels * 72.0 / PIXELS_PER_INCH
    least = min(pixels, points * LEAST_TEXT / min(sizes)) if sizes else pixels
    named = f'role="img" aria-label="{html.escape(title)}"' if title else 'aria-hidden="true"'
    return (
        f'<svg {named} viewBox="{box[1]}" fill="currentColor" '
        f'style="width:{pixels:.0f}px;min-width:{least:.0f}px">{body.rstrip()}'
    )
