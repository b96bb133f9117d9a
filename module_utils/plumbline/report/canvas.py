"""What plots are drawn on: matplotlib without a display, and inline SVG with the page's colours.

Its colours are replaced by CSS variables, so that a plot follows the page into dark mode and onto paper.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any

# Placeholders that matplotlib draws with, and what stands for them in the page.
FOREGROUND, MUTED, GRID, LINE, BAR = "#010203", "#010204", "#010205", "#010206", "#010207"
GOOD, WARN, BAD = "#010208", "#010209", "#01020a"
_VARIABLES = {
    FOREGROUND: "var(--text)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    LINE: "var(--accent)",
    BAR: "var(--accent-soft)",
    GOOD: "var(--ok)",
    WARN: "var(--warn)",
    BAD: "var(--critical)",
}


@dataclass(frozen=True)
class Plot:
    """One figure of the report."""

    title: str
    caption: str
    svg: str


def canvas(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure of so many inches and its axes."""
    import matplotlib  # noqa: PLC0415 - half a second: only whoever draws pays for it

    matplotlib.use("svg", force=True)
    from matplotlib.figure import Figure  # noqa: PLC0415

    matplotlib.rcParams.update(
        {
            "svg.fonttype": "none",  # text stays text: it takes the page's font, can be searched, and needs no glyphs
            "text.parse_math": False,  # a host or a scope may hold a dollar sign
            "font.family": "DejaVu Sans",
            "font.size": 9,
            "axes.edgecolor": MUTED,
            "axes.labelcolor": MUTED,
            "xtick.color": MUTED,
            "ytick.color": FOREGROUND,
            "text.color": FOREGROUND,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": GRID,
            "grid.linewidth": 0.8,
        }
    )
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    return figure, axes


def svg_of(figure: Any, name: str) -> str:
    """Return the drawing as an element for a page: no XML head, own ids, colours from the page."""
    import matplotlib  # noqa: PLC0415

    stream = io.StringIO()
    figure.patch.set_alpha(0)
    for axes in figure.axes:
        axes.patch.set_alpha(0)
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Ids must be unique in the page, where several drawings stand side by side.
    prefix = re.sub(r"\W", "-", name)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{prefix}-", text)
    text = re.sub(r"(<svg[^>]*?) (?:width|height)=\"[^\"]*\"", r"\1", text)
    text = re.sub(r"(<svg[^>]*?) (?:width|height)=\"[^\"]*\"", r"\1", text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, variable)
    return text.replace("DejaVu Sans", "system-ui")
