"""Pictures of methods that were trained, as inline SVG with a bounded number of elements."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.methods.registry import trained_method
from coterie.report import words
from coterie.report.figures import Axes, Figure, spread
from coterie.report.network_figures import COLOURS, DARK, LIGHT

if TYPE_CHECKING:
    from coterie.evidence.comparison import TrainingComparison

DOTS = 200
"""So many clients of a method are drawn as dots, at most."""
SQUARE = 120
"""So many clients at most have a picture of who is with whom."""


def style() -> str:
    """Colours of methods by day and by night; the ninth method has the first colour again, dashed."""
    light, dark = ("".join(f"--s{i}:{c};" for i, c in enumerate(p)) for p in (LIGHT, DARK))
    each = "".join(f".s{i}{{--c:var(--s{i})}}" for i in range(COLOURS))
    return (
        f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{each}"
        ".curve{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round}.curve:hover{stroke-width:3.4}"
        ".dashed{stroke-dasharray:5 3}.spot{fill:var(--c);fill-opacity:.5}.spot:hover{fill-opacity:1}"
        ".mean{stroke:var(--ink);stroke-width:2.2;fill:none}.with{fill:var(--gain)}"
        ".edge{stroke:var(--loss);stroke-width:1.4;fill:none}.paper{fill:var(--sheet);stroke:var(--rule)}"
    )


def _class(k: int) -> str:
    return f"s{k % COLOURS}{' dashed' if k // COLOURS % 2 else ''}"


def curves(result: TrainingComparison) -> list[Figure]:
    """Scores over rounds, the mean over seeds, a line for each method; and the same against bytes."""
    points = {name: _curve(result, name) for name in result.table.index}
    points = {name: p for name, p in points.items() if len(p)}
    if not points:
        return []
    everything = np.concatenate(list(points.values()))
    y = spread(everything[:, 1])
    if result.score == "accuracy":
        y = (max(y[0], 0.0), min(y[1], 1.0)) if y[1] > y[0] else (0.0, 1.0)
    rounds = Axes((0.0, max(float(everything[:, 0].max()), 1.0)), y)  # a run may end before its first round
    said = f"Held-out {result.score}, the mean over seeds, best method first."
    out = [Figure(f"{result.score.capitalize()} over rounds", _lines(points, rounds, 0, "round", result.score), said)]
    sent = everything[everything[:, 2] > 0.0, 2]
    if len(sent):
        low, high = float(sent.min()) / 1e6, float(sent.max()) / 1e6
        bytes_ = Axes((low, max(high, 1.01 * low)), y, log=True)
        moving = {name: np.c_[p[:, :2], p[:, 2] / 1e6][p[:, 2] > 0.0] for name, p in points.items()}
        moving = {name: p for name, p in moving.items() if len(p)}
        label = "megabytes sent, up and down (logarithmic)"
        svg = _lines(moving, bytes_, 2, label, result.score, list(points))
        still = [name for name in points if name not in moving]
        more = f" Not drawn: {words.joined(still)}, with all rows in one place." if still else ""
        out.append(Figure(f"{result.score.capitalize()} for what was sent", svg, f"The same against bytes.{more}"))
    return out


def _curve(result: TrainingComparison, name: str) -> Any:
    """Round, mean score and mean bytes wherever the method was evaluated in every seed (points, 3)."""
    seen: dict[float, list[tuple[float, float]]] = {}
    apart = 0.0 if trained_method(name).pool_rows else 1.0
    for run in result.runs[name]:
        for p in run.curve:
            if np.isfinite(p.get(result.score, np.nan)):
                seen.setdefault(p["round"], []).append((p[result.score], apart * (p["bytes_up"] + p["bytes_down"])))
    full = [(t, *np.mean(v, axis=0)) for t, v in sorted(seen.items()) if len(v) == len(result.runs[name])]
    return np.array(full).reshape(-1, 3)


def _lines(points: dict[str, Any], axes: Axes, column: int, x: str, y: str, order: list[str] | None = None) -> str:
    """A line for each method, its name where it ends, in the legend below."""
    names, parts = order or list(points), []
    for name, p in reversed(points.items()):
        k = names.index(name)
        across, down = axes.across(p[:, column]), axes.down(p[:, 1])
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(across, down, strict=True))
        title = f"<title>{escape(name)}: {words.number(float(p[-1, 1]), 4)} in the end</title>"
        if len(p) == 1:
            parts.append(
                f'<circle class="spot {_class(k)}" cx="{across[0]:.1f}" cy="{down[0]:.1f}" r="3">{title}</circle>'
            )
        else:
            parts.append(f'<path class="curve {_class(k)}" d="M{path}">{title}</path>')
    ends = "; ".join(f"{name} {words.number(float(p[-1, 1]), 3)}" for name, p in points.items())
    picture = axes.draw(parts, f"{y} of {len(points)} methods, in the end: {ends}.", x, y)
    return picture.removesuffix("</svg>") + "</svg>" + _legend(list(points), names)


def _legend(shown: list[str], names: list[str]) -> str:
    """Names with their lines, in rows."""
    parts, x, y = [], 8.0, 14.0
    for name in shown:
        wide = 40.0 + 6.8 * len(name)
        if x + wide > 436.0 and x > 8.0:
            x, y = 8.0, y + 19.0
        parts.append(f'<path class="curve {_class(names.index(name))}" d="M{x:.1f} {y - 4:.1f}h20"/>')
        parts.append(f'<text class="tick" x="{x + 26:.1f}" y="{y:.1f}">{escape(name)}</text>')
        x += wide
    return f'<svg viewBox="0 0 440 {y + 8:.0f}" role="img" aria-label="Legend">{"".join(parts)}</svg>'


def dots(result: TrainingComparison) -> Figure:
    """The score of every client under each method, all seeds together, and their mean."""
    names = [str(name) for name in result.table.index]
    values = {name: result.clients(name).ravel() for name in names}
    every = np.concatenate(list(values.values()))
    y = spread(every)
    y = (max(y[0], -0.02), min(y[1], 1.02)) if result.score == "accuracy" else y
    axes = Axes((0.0, float(len(names))), y, height=330.0, bottom=96.0, left=48.0)
    band = (axes.width - axes.left - axes.right) / len(names)
    parts, cut = [], False
    for k, name in enumerate(names):
        found = np.sort(values[name][np.isfinite(values[name])])
        if not len(found):
            continue
        cut |= len(found) > DOTS
        drawn = found[np.unique(np.linspace(0, len(found) - 1, min(len(found), DOTS)).round().astype(np.int64))]
        middle = axes.left + (k + 0.5) * band
        # Golden-ratio steps spread dots of equal height evenly over the band.
        aside = middle + 0.7 * band * ((np.arange(len(drawn)) * 0.618034) % 1.0 - 0.5)
        for a, b in zip(aside, axes.down(drawn), strict=True):
            parts.append(f'<circle class="spot {_class(k)}" cx="{a:.1f}" cy="{b:.1f}" r="1.9"/>')
        at = float(axes.down(found.mean()))
        parts.append(f'<path class="mean" d="M{middle - 0.4 * band:.1f} {at:.1f}h{0.8 * band:.1f}">')
        parts.append(f"<title>{escape(name)}: mean {words.number(float(found.mean()), 3)}</title></path>")
        base = axes.height - axes.bottom + 14.0
        parts.append(f'<text class="tick" transform="translate({middle + 4:.1f} {base:.1f}) rotate(-38)" ')
        parts.append(f'text-anchor="end">{escape(name)}</text>')
    means = "; ".join(f"{name} {words.number(float(np.nanmean(v)), 3)}" for name, v in values.items())
    svg = axes.draw(parts, f"{result.score} of each client; means: {means}.", "", result.score, x_ticks=False)
    several = " in every seed" if len(result.config.run["seeds"]) > 1 else ""
    caption = f"A dot is a client{several}; the line is the mean over clients."
    return Figure(
        f"{result.score.capitalize()} of each client",
        svg,
        caption + (f" {DOTS} dots a method are drawn." if cut else ""),
    )


def square(result: TrainingComparison, name: str) -> Figure | None:
    """Who is with whom, of the first seed: clients in the order of the known groups; nothing where they are many."""
    found, known = result.runs[name][0].group, result.groups[0]
    m = len(found)
    if m > SQUARE:
        return None
    order = np.lexsort((found, known)) if known is not None else np.argsort(found, kind="stable")
    group = found[order]
    size, left, top = 300.0 / m, 70.0, 10.0
    parts = [f'<rect class="paper" x="{left:g}" y="{top:g}" width="300" height="300"/>']
    for i in range(m):
        together = np.concatenate([[False], group == group[i], [False]])
        edges = np.flatnonzero(together[1:] != together[:-1])
        runs = "".join(
            f"M{left + a * size:.1f} {top + i * size:.1f}h{(b - a) * size:.1f}v{size:.1f}h{(a - b) * size:.1f}z"
            for a, b in zip(edges[::2], edges[1::2], strict=True)
        )
        parts.append(f'<path class="with" d="{runs}"/>')
    if known is not None:
        for cut in np.flatnonzero(np.diff(known[order])) + 1:
            at = cut * size
            parts.append(f'<path class="edge" d="M{left + at:.1f} {top:g}v300M{left:g} {top + at:.1f}h300"/>')
    k = len(np.unique(found))
    groups = "one group" if k == 1 else f"{k} groups"
    label = f"Who is with whom: {m} clients in {groups} that {name} found."
    lines = " Lines separate the known groups." if known is not None else ""
    svg = f'<svg viewBox="0 0 440 320" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    caption = f"{m} clients on both sides, in {groups}, as found; filled where two are together.{lines}"
    return Figure(f"Who is with whom: {name}", svg, caption)
