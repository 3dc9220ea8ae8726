"""Pictures as inline SVG: sharp at any size, coloured by the page's own style, with a bounded number of elements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.numerics.arrays import Floats
from coterie.report import words

if TYPE_CHECKING:
    from coterie.results.result import FitResult

NAMED = 300
"""So many clients are drawn one by one, each with its name; more are summed up."""
LINES = 200
"""Lines of the shrinkage pictures at most."""


@dataclass(frozen=True)
class Figure:
    """A picture.

    Attributes
    ----------
    title : str
    svg : str
        Escaped already
    caption : str
        What is drawn, and what was cut.
    """

    title: str
    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Axes:
    """A frame: ranges of the data and where they lie, in the picture's units."""

    x: tuple[float, float]
    y: tuple[float, float]
    log: bool = False
    width: float = 440.0
    height: float = 290.0
    left: float = 54.0
    right: float = 22.0
    top: float = 26.0
    bottom: float = 44.0

    def across(self, x: Any) -> Floats:
        """Horizontal places of values."""
        low, high = np.log10(self.x) if self.log else self.x
        value = np.log10(np.asarray(x, dtype=np.float64)) if self.log else np.asarray(x, dtype=np.float64)
        place = self.left + (value - low) / (high - low) * (self.width - self.left - self.right)
        return np.asarray(place, dtype=np.float64)

    def down(self, y: Any) -> Floats:
        """Vertical places of values, those beyond the frame at its edge."""
        value = np.clip(np.asarray(y, dtype=np.float64), *self.y)
        share = (value - self.y[0]) / (self.y[1] - self.y[0])
        return np.asarray(self.height - self.bottom - share * (self.height - self.top - self.bottom), dtype=np.float64)

    def draw(self, parts: Iterable[str], label: str, x_title: str = "", y_title: str = "", x_ticks: bool = True) -> str:
        """The whole picture: grid, ticks and titles around the parts."""
        out = [f'<svg viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(label)}">']
        right, base = self.width - self.right, self.height - self.bottom
        ticks = nice(*self.y)
        places = words.decimals(np.diff(ticks), 1) if len(ticks) > 1 else 2
        for tick in ticks:
            y = float(self.down(tick))
            out.append(f'<path class="grid" d="M{self.left:g} {y:.1f}H{right:g}"/>')
            out.append(f'<text class="tick" x="{self.left - 7:g}" y="{y + 4:.1f}" text-anchor="end">')
            out.append(f"{words.fixed(tick, places)}</text>")
        for tick in (decades(*self.x) if self.log else nice(*self.x)) if x_ticks else []:
            x = float(self.across(tick))
            out.append(f'<path class="stub" d="M{x:.1f} {base:g}v4"/>')
            out.append(f'<text class="tick" x="{x:.1f}" y="{base + 17:g}" text-anchor="middle">')
            out.append(f"{tick:,.6g}</text>")
        out += parts
        middle = (self.left + right) / 2
        out.append(f'<text class="title" x="{middle:g}" y="{self.height - 6:g}" text-anchor="middle">')
        out.append(f'{escape(x_title)}</text><text class="title" x="2" y="13">{escape(y_title)}</text></svg>')
        return "".join(out)


def nice(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two ends."""
    raw = (high - low) / most
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


def gain_figures(result: FitResult) -> list[Figure]:
    """Who gains and who loses over each baseline: clients in order of their gain, and gain by number of rows."""
    frame, out = result.client_gains, []
    if frame.empty:
        return []
    for other, name in (("local", "local models"), ("pooled", "the pooled model")):
        gain = frame[f"gain_over_{other}"].to_numpy(dtype=np.float64)
        seen = np.isfinite(gain)
        if result.recommended == other or not np.any(gain[seen]):
            continue
        rows = frame["rows"].to_numpy(dtype=np.float64)[seen]
        labels = [words.short(v) for v in frame.index[seen]] if seen.sum() <= NAMED else []
        out.append(_sorted_gains(gain[seen], labels, name, result))
        out.append(_gains_by_rows(gain[seen], rows, labels, name, result))
    return out


def _sorted_gains(gain: Floats, labels: list[str], other: str, result: FitResult) -> Figure:
    """An area from the zero line to each client's gain, worst first."""
    order = np.argsort(gain, kind="stable")
    value, m = gain[order], len(gain)
    axes = Axes((0.0, float(m)), spread(value, zero=True))
    parts = []
    for kind, (start, stop) in {
        "loss": (0, int((value < 0).sum())),
        "gain": (m - int((value > 0).sum()), m),
    }.items():
        if start == stop:
            continue
        edges = np.unique(np.linspace(start, stop, min(stop - start, 400) + 1).round().astype(np.int64))
        # The mean of each run of clients stands for it; where there are few, each is its own run.
        sums = np.concatenate([[0.0], np.cumsum(value[start:stop])])
        height = np.diff(sums[edges - start]) / np.diff(edges)
        x, y, base = axes.across(edges), axes.down(height), float(axes.down(0.0))
        steps = "".join(f"V{b:.1f}H{a:.1f}" for a, b in zip(x[1:], y, strict=True))
        parts.append(f'<path class="area {kind}" d="M{x[0]:.1f} {base:.1f}{steps}V{base:.1f}Z"/>')
    parts.append(_zero(axes))
    if labels:
        x, band = axes.across(np.arange(m)), (axes.width - axes.left - axes.right) / m
        for i, k in enumerate(order):
            parts.append(
                f'<rect class="hover" x="{x[i]:.1f}" y="{axes.top:g}" width="{band:.2f}" '
                f'height="{axes.height - axes.top - axes.bottom:g}">{_name(labels[k], gain[k])}</rect>'
            )
    many = words.several(result.model.client_name)
    up, down = int((gain > 0).sum()), int((gain < 0).sum())
    return Figure(
        f"Gain over {other}, from worst to best",
        axes.draw(
            parts,
            f"Gain of each of {m:,} {many} over {other} in held-out {result.loss}, sorted: "
            f"{down:,} lose, {up:,} gain, median {words.number(float(np.median(gain)))}.",
            f"{many}, from the greatest loss to the greatest gain",
            f"gain ({result.loss})",
        ),
        f"{up:,} gain, {down:,} lose; the median gain is {words.number(float(np.median(gain)))}.{_cut(axes, gain)}",
    )


def _gains_by_rows(gain: Floats, rows: Floats, labels: list[str], other: str, result: FitResult) -> Figure:
    """A point for each client, or where there are many a grid of cells, darker where more clients lie."""
    low, high = float(rows.min()), float(rows.max())
    wide = high > 8 * max(low, 1.0)
    ends = (max(low, 0.5) / 1.15, high * 1.15) if wide else (low - 1.0, high + 1.0)
    axes = Axes(ends, spread(gain, zero=True), log=wide)
    x, y = axes.across(np.maximum(rows, 0.5)), axes.down(gain)
    parts = [_zero(axes)]
    if labels:
        for i in range(len(gain)):
            kind = "gain" if gain[i] >= 0 else "loss"
            parts.append(f'<circle class="dot {kind}" cx="{x[i]:.1f}" cy="{y[i]:.1f}" r="3.4">')
            parts.append(f"{_name(labels[i], gain[i])}</circle>")
    else:
        parts += _cells(axes, x, y, gain)
    many = words.several(result.model.client_name)
    client = words.one(result.model.client_name)
    each = f"Each point is a {client}" if labels else f"Each cell is a group of {many}, stronger where they are more"
    return Figure(
        f"Gain over {other}, by number of rows",
        axes.draw(
            parts,
            f"Gain of each of {len(gain):,} {many} over {other} against its number of rows.",
            f"rows of the {client}{' (logarithmic)' if wide else ''}",
            f"gain ({result.loss})",
        ),
        f"{each}.{_cut(axes, gain)}",
    )


def _cells(axes: Axes, x: Floats, y: Floats, gain: Floats, size: float = 8.0) -> list[str]:
    column, row = ((v // size).astype(np.int64) for v in (x, y))
    cells, inverse = np.unique(np.stack([column, row]), axis=1, return_inverse=True)
    count = np.bincount(inverse.ravel())
    mean = np.bincount(inverse.ravel(), gain) / count
    shade = 0.18 + 0.82 * np.log1p(count) / np.log1p(count.max())
    return [
        f'<rect class="cell {"gain" if g >= 0 else "loss"}" x="{c * size:g}" y="{r * size:g}" width="{size - 0.6:g}" '
        f'height="{size - 0.6:g}" opacity="{o:.2f}"/>'
        for c, r, g, o in zip(*cells, mean, shade, strict=True)
    ]


def _zero(axes: Axes) -> str:
    y = float(axes.down(0.0))
    return f'<path class="zero" d="M{axes.left:g} {y:.1f}H{axes.width - axes.right:g}"/>'


def _name(label: str, gain: float) -> str:
    return f"<title>{escape(label)}: {words.number(gain)}</title>"


def _cut(axes: Axes, values: Floats) -> str:
    beyond = int(((values < axes.y[0]) | (values > axes.y[1])).sum())
    return f" {beyond:,} beyond the frame {'is' if beyond == 1 else 'are'} drawn at its edge." if beyond else ""


def shrinkage_figures(result: FitResult, terms: int = 4) -> list[Figure]:
    """How clients are pulled toward their clusters, a picture for each of the first personal terms."""
    m = result.model
    spare = np.ptp(m.client, axis=0) > 0  # a standard deviation of equal numbers may be rounded to more
    chosen = [int(j) for j in m.personal if spare[j]][:terms]
    picked = _picked(m.client[:, chosen[0]]) if chosen else np.empty(0, dtype=np.int64)
    centre = m.nodes[0][m.clusters] if words.centre(m) else np.broadcast_to(m.root, m.client.shape)
    local = result.local_coefficients
    out = []
    for j in chosen:
        if local is not None and m.terms[j] in local:
            alone = local[m.terms[j]].reindex(m.labels).to_numpy(dtype=np.float64)
            out.append(_shrinkage(result, j, picked, alone, centre[:, j]))
        else:
            out.append(_intervals(result, j, picked, centre[:, j]))
    return out


def _picked(values: Floats) -> Any:
    """Clients to draw: all, or some that are evenly spread over the order of their coefficients."""
    order = np.argsort(values, kind="stable")
    if len(order) <= LINES:
        return order
    return order[np.linspace(0, len(order) - 1, LINES).round().astype(np.int64)]


def _shrinkage(result: FitResult, j: int, picked: Any, alone: Floats, centre: Floats) -> Figure:
    """Lines from each client's own estimate to its fitted one, and on to its cluster."""
    m = result.model
    fitted = m.client[:, j]
    low, high = spread(np.concatenate([fitted, centre]), tail=0.0)
    wide = spread(alone, tail=0.02)
    axes = Axes((0.0, 2.0), (min(low, wide[0]), max(high, wide[1])), right=26.0, top=10.0, bottom=26.0)
    x = axes.across([0.12, 1.12, 1.9])
    places = np.stack([axes.down(v[picked]) for v in (np.nan_to_num(alone), fitted, centre)], axis=1)
    parts = []
    for client, (a, b, c) in zip(picked, places, strict=True):
        if np.isfinite(alone[client]):
            parts.append(f'<path class="pull" d="M{x[0]:.1f} {a:.1f}L{x[1]:.1f} {b:.1f}"><title>')
            parts.append(f"{escape(words.short(m.labels[client]))}: {words.number(alone[client])} alone, ")
            parts.append(f"{words.number(fitted[client])} {escape(m.method)}</title></path>")
        parts.append(f'<path class="tie" d="M{x[1]:.1f} {b:.1f}L{x[2]:.1f} {c:.1f}"/>')
    homes = np.unique(places[:, 2].round(1))
    kind = "bar" if len(homes) <= 20 else "bar thin"
    parts += [f'<path class="{kind}" d="M{x[2] - 5:.1f} {y:.1f}h10"/>' for y in homes]
    many, cluster = words.several(m.client_name), words.centre(m)
    group = f"its {words.one(cluster)}" if cluster else f"the model of all {many}"
    for at, text in zip(x, ("alone", m.method, group if cluster else f"all {many}"), strict=True):
        parts.append(f'<text class="tick" x="{at:.1f}" y="{axes.height - axes.bottom + 17:g}" text-anchor="middle">')
        parts.append(f"{escape(text)}</text>")
    beyond = int(((alone < axes.y[0]) | (alone > axes.y[1])).sum())
    cut = f" {len(picked)} of {len(fitted):,} {many} are drawn." if len(picked) < len(fitted) else ""
    cut += f" {beyond:,} local estimates lie beyond the frame." if beyond else ""
    ratio = _kept(alone, fitted, centre)
    typical = f"The median {words.one(m.client_name)} keeps"
    said = f"{typical} {words.percent(ratio)} of its distance from {group}." if ratio else ""
    return Figure(
        _term(m.terms[j]),
        axes.draw(parts, f"{_term(m.terms[j])}: estimates of {many} alone, {m.method}, and of {group}.", x_ticks=False),
        f"{said}{cut}".strip(),
    )


def _kept(alone: Floats, fitted: Floats, centre: Floats) -> float:
    """The median share of a client's own deviation that the fit keeps; 0 where that says nothing."""
    far = np.isfinite(alone) & (np.abs(alone - centre) > 0)
    if not far.any():
        return 0.0
    share = float(np.median(((fitted - centre)[far]) / ((alone - centre)[far])))
    return share if 0.0 < share < 1.0 else 0.0


def _intervals(result: FitResult, j: int, picked: Any, centre: Floats) -> Figure:
    """Each client's coefficient with its 95% interval, in order, and its cluster's."""
    m = result.model
    value = m.client[picked, j]
    order = np.argsort(value, kind="stable")
    value, around = value[order], centre[picked][order]
    errors = result.client_std_errors
    half = np.zeros(len(value)) if errors is None else 1.96 * errors.to_numpy()[picked, j][order]
    ends = spread(np.concatenate([value - half, value + half, around]), tail=0.0)
    axes = Axes((-1.0, float(len(value))), ends, top=10.0, bottom=26.0)
    x, y = axes.across(np.arange(len(value))), axes.down(value)
    low, high, middle = axes.down(value - half), axes.down(value + half), axes.down(around)
    parts = [f'<path class="pull" d="M{a:.1f} {b:.1f}V{c:.1f}"/>' for a, b, c in zip(x, low, high, strict=True)]
    parts += [f'<circle class="point" cx="{a:.1f}" cy="{b:.1f}" r="2"/>' for a, b in zip(x, y, strict=True)]
    parts += [f'<path class="bar" d="M{a - 2:.1f} {b:.1f}h4"/>' for a, b in zip(x, middle, strict=True)]
    many = words.several(m.client_name)
    cluster = words.centre(m)
    group = f"of their {words.one(cluster)}" if cluster else f"of the model of all {many}"
    cut = f" {len(picked)} of {len(m.labels):,} {many} are drawn." if len(picked) < len(m.labels) else ""
    with_intervals = "" if errors is None else " with 95% intervals"
    return Figure(
        _term(m.terms[j]),
        axes.draw(
            parts,
            f"{_term(m.terms[j])}: the coefficient of each of {len(value):,} {many}{with_intervals}, in order.",
            x_ticks=False,
        ),
        f"Points: {many}{with_intervals}, in order; bars: the coefficient {group}.{cut}",
    )


def _term(term: str) -> str:
    return "Intercept" if term == "(Intercept)" else term
