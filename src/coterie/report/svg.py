"""Pictures as inline SVG: sharp at any size, coloured by the page's own style, with a bounded number of elements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from coterie.numerics.arrays import Floats, Ints
from coterie.report import words

COLOURS = 8
"""Groups and methods with a colour of their own: classes g0 to g7 of the page's style, and gx for all others."""


@dataclass(frozen=True)
class Figure:
    """A picture; the caption says what is drawn, and what was cut."""

    title: str
    svg: str  # escaped already
    caption: str = ""


@dataclass(frozen=True)
class Axes:
    """A frame: ranges of the data and where they lie, in the picture's units; margins are left, right, top, bottom."""

    x: tuple[float, float]
    y: tuple[float, float]
    log: bool = False  # of x
    whole: bool = False  # of x: nothing is between two numbers
    width: float = 440.0
    height: float = 290.0
    left: float = 54.0
    right: float = 22.0
    top: float = 26.0
    bottom: float = 44.0

    @property
    def end(self) -> float:
        """Where the frame ends on the right."""
        return self.width - self.right

    @property
    def base(self) -> float:
        """Where the frame ends below."""
        return self.height - self.bottom

    def across(self, x: Any) -> Floats:
        """Horizontal places of values."""
        low, high = np.log10(self.x) if self.log else self.x
        value = np.log10(np.asarray(x, dtype=np.float64)) if self.log else np.asarray(x, dtype=np.float64)
        return np.asarray(self.left + (value - low) / (high - low) * (self.end - self.left), dtype=np.float64)

    def down(self, y: Any) -> Floats:
        """Vertical places of values, those beyond the frame at its edge."""
        share = (np.clip(np.asarray(y, dtype=np.float64), *self.y) - self.y[0]) / (self.y[1] - self.y[0])
        return np.asarray(self.base - share * (self.base - self.top), dtype=np.float64)

    def level(self, kind: str, y: float) -> str:
        """A line across the frame."""
        return mark("path", kind, d=f"M{self.left:g} {float(self.down(y)):.1f}H{self.end:g}")

    def beyond(self, values: Floats) -> int:
        """How many values lie beyond the frame."""
        return int(((values < self.y[0]) | (values > self.y[1])).sum())

    def draw(
        self,
        parts: Iterable[str],
        label: str,
        x_title: str = "",
        y_title: str = "",
        ticks: str = "xy",
        legend: Sequence[tuple[str, str]] = (),
    ) -> str:
        """The whole picture: grid, ticks and titles around the parts, and the legend (kind, text) below."""
        out: list[str] = []
        levels = nice(*self.y) if "y" in ticks else []
        places = words.decimals(np.diff(levels), 1) if len(levels) > 1 else 2
        for value in levels:
            out.append(self.level("grid", value))
            out.append(text(self.left - 7, float(self.down(value)) + 4, words.fixed(value, places), anchor="end"))
        for value in (decades(*self.x) if self.log else nice(*self.x, least=float(self.whole))) if "x" in ticks else []:
            x = float(self.across(value))
            out.append(mark("path", "stub", d=f"M{x:.1f} {self.base:g}v4"))
            out.append(text(x, self.base + 17, f"{value:,.6g}"))
        out += parts
        if x_title:
            out.append(text((self.left + self.end) / 2, self.height - 6, x_title, "title"))
        if y_title:
            out.append(text(2, 13, y_title, "title", "start"))
        names, height = legend_rows(legend, self.height)
        return picture([*out, *names], height, label, self.width)


def picture(parts: Iterable[str], height: float, label: str, width: float = 440.0) -> str:
    """Elements as a picture with a description for who cannot see it."""
    start = f'<svg viewBox="0 0 {width:g} {height:.0f}" role="img" aria-label="{escape(label)}">'
    return f"{start}{''.join(parts)}</svg>"


def mark(tag: str, kind: str, title: str = "", inside: str = "", **attributes: float | str) -> str:
    """An element of a class: numbers are rounded to a tenth; a pointer that rests on it shows its title."""
    said = "".join(
        f' {name.replace("_", "-")}="{value if isinstance(value, str) else f"{value:.1f}"}"'
        for name, value in attributes.items()
    )
    inside = (f"<title>{escape(title)}</title>" if title else "") + escape(inside)
    return f'<{tag} class="{kind}"{said}' + (f">{inside}</{tag}>" if inside else "/>")


def text(x: float, y: float, said: str, kind: str = "tick", anchor: str = "middle") -> str:
    """Words at a place."""
    return mark("text", kind, inside=said, x=x, y=y, text_anchor=anchor)


def line(x: Floats, y: Floats) -> str:
    """The path through points."""
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def colour(group: int) -> str:
    """The class of a group; those after the eighth have no colour of their own."""
    return f"g{group}" if 0 <= group < COLOURS else "gx"


def legend_rows(entries: Sequence[tuple[str, str]], above: float) -> tuple[list[str], float]:
    """A curve or a dot of each kind with its name, in rows below a height; and the height that they reach."""
    parts, x, y = list[str](), 10.0, above + 18.0
    for kind, name in entries:
        indent = 26.0 if kind.startswith("curve") else 15.0
        wide = indent + 13.0 + 7.4 * len(name)  # of a narrow screen's larger letters
        if x + wide > 434.0 and x > 10.0:
            x, y = 10.0, y + 19.0
        dot = mark("circle", kind, cx=x + 5, cy=y - 4, r=5.0)
        parts.append(mark("path", kind, d=f"M{x:.1f} {y - 4:.1f}h20") if indent > 20.0 else dot)
        parts.append(text(x + indent, y, name, anchor="start"))
        x += wide
    return parts, y + 8.0 if entries else above


def evenly(n: int, most: int) -> Ints:
    """All of n places or, where they are more, so many that are evenly spread from the first to the last."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64))


def nice(low: float, high: float, most: int = 6, least: float = 0.0) -> list[float]:
    """Round numbers between two ends, at least so far from each other."""
    raw = max((high - low) / most, least)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * k for k in (1, 2, 5, 10) if size * k >= raw * 0.999)
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """Round numbers between two ends, for logarithms."""
    ends = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [k * 10.0**e for e in ends for k in steps if low * 0.999 <= k * 10.0**e <= high * 1.001]
        if len(ticks) <= 7:
            return ticks
    return ticks[:: len(ticks) // 6 + 1]


def spread(values: Floats, zero: bool = False, tail: float = 0.005) -> tuple[float, float]:
    """A range that holds values, but not far outliers; never empty."""
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    near, far = (float(q) for q in np.quantile(values, [tail, 1.0 - tail]))
    room = 0.6 * (far - near)
    low, high = max(low, near - room), min(high, far + room)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    pad = 0.05 * (high - low) or max(abs(high), 1.0) * 0.1
    return low - pad, high + pad
