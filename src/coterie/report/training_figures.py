"""Pictures of methods that were trained: learning curves, the score of every client, and who is with whom."""

from __future__ import annotations

import numpy as np

from coterie.errors import joined
from coterie.evidence.training_comparison import TrainingComparison
from coterie.methods.groups.group_gradients import Growth
from coterie.methods.registry import TRAINED
from coterie.numerics.arrays import Floats
from coterie.report import words
from coterie.report.svg import COLOURS, Axes, Figure, evenly, line, mark, picture, spread, text

DOTS = 200  # so many clients of a method are drawn as dots, at most
SQUARE = 120  # so many clients at most have a picture of who is with whom


def _kind(mark: str, k: int) -> str:
    """A mark in the colour of the k-th method; the ninth has the first colour again, dashed."""
    return f"{mark} g{k % COLOURS}{' dashed' if k // COLOURS % 2 else ''}"


def curves(result: TrainingComparison) -> list[Figure]:
    """Scores over rounds, the mean over seeds, a line for each method; and the same against bytes."""
    names = [str(name) for name in result.table.index]
    points = {name: p for name in names if len(p := curve(result, name))}
    if not points:
        return []
    everything = np.concatenate(list(points.values()))
    y = spread(everything[:, 1])
    if result.score == "accuracy":
        y = (max(y[0], 0.0), min(y[1], 1.0)) if y[1] > y[0] else (0.0, 1.0)
    rounds = Axes((0.0, max(float(everything[:, 0].max()), 1.0)), y, whole=True)  # a run may end before its first round
    title = result.score.capitalize()
    said = f"Held-out {result.score}, the mean over seeds, best method first."
    out = [Figure(f"{title} over rounds", _lines(points, list(points), rounds, 0, "round", unit(result.score)), said)]
    sent = everything[everything[:, 2] > 0.0, 2]
    if len(sent):
        moving = {name: p[p[:, 2] > 0.0] for name, p in points.items() if (p[:, 2] > 0.0).any()}
        low, high = float(sent.min()), float(sent.max())
        megabytes = Axes((low, max(high, 1.01 * low)), y, log=True)
        label = "megabytes sent, up and down (logarithmic)"
        svg = _lines(moving, list(points), megabytes, 2, label, unit(result.score))
        still = [name for name in points if name not in moving]
        more = f" Not drawn: {joined(still)}, with all rows in one place." if still else ""
        out.append(Figure(f"{title} for what was sent", svg, f"The same against bytes.{more}"))
    return out


def unit(score: str) -> str:
    """A score as the title of an axis."""
    return f"{score} (share of rows)" if score == "accuracy" else score


def curve(result: TrainingComparison, name: str) -> Floats:
    """Round, mean score and mean megabytes wherever the method was evaluated in every seed (points, 3)."""
    seen: dict[float, list[tuple[float, float]]] = {}
    apart = 0.0 if name in TRAINED and TRAINED[name].pool_rows else 1e-6
    for run in result.runs[name]:
        for p in run.curve:
            if np.isfinite(p.get(result.score, np.nan)):
                seen.setdefault(p["round"], []).append((p[result.score], apart * (p["bytes_up"] + p["bytes_down"])))
    full = [(t, *np.mean(v, axis=0)) for t, v in sorted(seen.items()) if len(v) == len(result.runs[name])]
    return np.array(full).reshape(-1, 3)


def _lines(points: dict[str, Floats], names: list[str], axes: Axes, column: int, x: str, y: str) -> str:
    """A line for each method, in the colour of its place among all names, and the legend."""
    parts = []
    for name, p in reversed(points.items()):
        k, across, down = names.index(name), axes.across(p[:, column]), axes.down(p[:, 1])
        title = f"{name}: {words.number(float(p[-1, 1]), 4)} in the end"
        if len(p) == 1:
            parts.append(mark("circle", _kind("spot", k), title, cx=across[0], cy=down[0], r=3.0))
        else:
            parts.append(mark("path", _kind("curve", k), title, d=line(across, down)))
    ends = "; ".join(f"{name} {words.number(float(p[-1, 1]), 3)}" for name, p in points.items())
    legend = [(_kind("curve", names.index(name)), name) for name in points]
    return axes.draw(parts, f"{y} of {len(points)} methods, in the end: {ends}.", x, y, legend=legend)


def gradients(name: str, found: Growth) -> Figure | None:
    """Squared gradients of the groups' own losses over rounds, and that of the sum; None before a second look."""
    drawn = {f"group {g + 1}": found.gradient[:, g] for g in range(min(found.gradient.shape[1], COLOURS))}
    drawn = {who: values for who, values in drawn.items() if (values > 0.0).all()}
    if len(found.rounds) < 2 or not drawn or not (found.norm > 0.0).all():
        return None
    axes = Axes((0.0, float(found.rounds[-1])), spread(np.log10(np.concatenate([*drawn.values(), found.norm]))))
    across = axes.across(found.rounds)
    lines = [("curve gx", "the sum", found.norm)] + [(_kind("curve", k), *one) for k, one in enumerate(drawn.items())]
    ends = [f"{who}: {words.number(float(values[-1]), 3)} in the end" for _, who, values in lines]
    parts = [
        mark("path", kind, said, d=line(across, axes.down(np.log10(values))))
        for (kind, _, values), said in zip(lines, ends, strict=True)
    ]
    legend = [(kind, who) for kind, who, _ in lines]
    svg = axes.draw(parts, f"{'; '.join(ends)}.", "round", "squared gradient, power of ten", legend=legend)
    many = found.gradient.shape[1] - COLOURS
    cut = f" {many} more groups are not drawn." if many > 0 else ""
    said = "Of the first seed. A group whose line stays up while that of the sum falls is at no stationary point of its"
    return Figure(f"Groups' own gradients: {name}", svg, f"{said} own.{cut}")


def dots(result: TrainingComparison) -> Figure:
    """The score of every client under each method, all seeds together, and their mean."""
    values = {str(name): result.clients(str(name)).ravel() for name in result.table.index}
    y = spread(np.concatenate(list(values.values())))
    y = (max(y[0], -0.02), min(y[1], 1.02)) if result.score == "accuracy" else y
    axes = Axes((0.0, float(len(values))), y, height=330.0, bottom=96.0, left=48.0)
    band = (axes.end - axes.left) / len(values)
    parts, cut, means = [], False, []
    for k, (name, value) in enumerate(values.items()):
        order = np.argsort(np.where(np.isfinite(value), value, np.inf), kind="stable")[: np.isfinite(value).sum()]
        found, labels = value[order], [label for run in result.runs[name] for label in run.labels]
        means.append(f"{name} {words.number(float(found.mean()), 3) if len(found) else 'no number'}")
        if not len(found):
            continue
        cut |= len(found) > DOTS
        kept = evenly(len(found), DOTS)
        drawn = found[kept]
        titles = [f"{words.short(labels[i])}: {words.number(value[i])}" if labels else "" for i in order[kept]]
        middle = axes.left + (k + 0.5) * band
        # Golden-ratio steps spread dots of equal height evenly over the band.
        aside = middle + 0.7 * band * ((np.arange(len(drawn)) * 0.618034) % 1.0 - 0.5)
        kind = _kind("spot", k)
        places = zip(titles, aside, axes.down(drawn), strict=True)
        parts += [mark("circle", kind, said, cx=a, cy=b, r=1.9 if len(kept) > 60 else 3.0) for said, a, b in places]
        at, title = float(axes.down(found.mean())), f"{name}: mean {words.number(float(found.mean()), 3)}"
        parts.append(mark("path", "mean", title, d=f"M{middle - 0.4 * band:.1f} {at:.1f}h{0.8 * band:.1f}"))
        turned = f"translate({middle + 4:.1f} {axes.base + 14.0:.1f}) rotate(-38)"
        parts.append(mark("text", "tick", inside=name, transform=turned, text_anchor="end"))
    label = f"{result.score} of each client; means: {'; '.join(means)}."
    several = " in every seed" if len(result.config.run["seeds"]) > 1 else ""
    caption = f"A dot is a client{several}; the line is the mean over clients."
    caption += f" {DOTS} dots a method are drawn." if cut else ""
    svg = axes.draw(parts, label, y_title=unit(result.score), ticks="y")
    return Figure(f"{result.score.capitalize()} of each client", svg, caption)


def who_has_what(result: TrainingComparison) -> Figure | None:
    """Rows of each class at each client, of the first seed, as circles; nothing where clients or classes are many."""
    counts = result.class_counts
    if counts is None or counts.shape[0] > SQUARE or counts.shape[1] > SQUARE // 3 or not counts.any():
        return None
    m, K = counts.shape
    step, left, top = min(380.0 / m, 22.0), 44.0, 14.0
    labels = next(iter(result.runs.values()))[0].labels
    parts = [text(left - 10.0, top + (c + 0.5) * step + 3.0, str(c), anchor="end") for c in range(0, K, K // 20 + 1)]
    for i, c in np.argwhere(counts > 0).tolist():
        radius = max(0.5 * step * float(np.sqrt(counts[i, c] / counts.max())), 0.4)
        said = f"client {words.short(labels[i])}, class {c}: {counts[i, c]:,} rows"
        parts.append(mark("circle", "spot g0", said, cx=left + (i + 0.5) * step, cy=top + (c + 0.5) * step, r=radius))
    mean = words.number(float((counts > 0).sum(axis=1).mean()), 3)
    label = f"Rows of {K} classes at {m} clients, of which a client has {mean}."
    svg = picture(parts, top + K * step + 8.0, label)
    caption = f"{label} Clients are columns, classes lines; a circle's area is how many rows, {counts.max():,} at most."
    return Figure("Who has what", svg, caption)


def square(result: TrainingComparison, name: str) -> Figure | None:
    """Who is with whom, of the first seed: clients in the order of the known groups; nothing where they are many."""
    found, known = result.runs[name][0].group, result.groups[0]
    m = len(found)
    if m > SQUARE:
        return None
    order = np.lexsort((found, known)) if known is not None else np.argsort(found, kind="stable")
    group = found[order]
    size, left, top = 300.0 / m, 70.0, 10.0
    parts = [mark("rect", "paper", x=left, y=top, width=300.0, height=300.0)]
    for i in range(m):
        together = np.concatenate([[False], group == group[i], [False]])
        edges = np.flatnonzero(together[1:] != together[:-1])
        runs = "".join(
            f"M{left + a * size:.1f} {top + i * size:.1f}h{(b - a) * size:.1f}v{size:.1f}h{(a - b) * size:.1f}z"
            for a, b in zip(edges[::2], edges[1::2], strict=True)
        )
        parts.append(mark("path", "with", d=runs))
    for cut in np.flatnonzero(np.diff(known[order])) + 1 if known is not None else []:
        at = cut * size
        parts.append(mark("path", "edge", d=f"M{left + at:.1f} {top:g}v300M{left:g} {top + at:.1f}h300"))
    k = len(np.unique(found))
    groups = "one group" if k == 1 else f"{k} groups"
    lines = " Lines separate the known groups." if known is not None else ""
    svg = picture(parts, 320.0, f"Who is with whom: {m} clients in {groups} that {name} found.")
    caption = f"{m} clients on both sides, in {groups}, as found; filled where two are together.{lines}"
    return Figure(f"Who is with whom: {name}", svg, caption)
