"""How figures look: one style, colours that colour-blind readers tell apart, and the same bytes every time."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from coterie.errors import CoterieError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008), Color universal design; the grey is for what is only there to compare with.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#7A7A7A",
)

_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.0,
    "legend.frameon": False,
    "svg.hashsalt": "coterie",
}


def need_matplotlib() -> None:
    """Raise CoterieError where figures cannot be drawn, so that it is known before any work."""
    if find_spec("matplotlib") is None:
        raise CoterieError("Figures are drawn by matplotlib, which is not installed: pip install matplotlib.")


def panels(columns: int = 1, width: float = 4.6, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """A figure of some panels side by side, each so many inches wide and high; no window is ever opened."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def render(draw: Callable[[], Figure], file: str = "svg") -> bytes:
    """Draw a figure in the common style and give it as the bytes of a file (svg or png)."""
    need_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        out = io.BytesIO()
        draw().savefig(out, format=file, dpi=120, metadata={"Date": None} if file == "svg" else {})
    return out.getvalue()
