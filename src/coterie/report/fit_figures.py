"""Pictures of a fit: who gains and who loses, how clients are pulled toward their clusters, and how far a run came."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.errors import plural
from coterie.families import family_named
from coterie.numerics.arrays import Floats, Ints
from coterie.report import words
from coterie.report.svg import Axes, Figure, evenly, line, mark, spread, text
from coterie.results.fit_result import FitResult

NAMED = 300  # so many clients are drawn one by one, each with its name; more are summed up
LINES = 200  # lines of the shrinkage pictures at most
OTHERS = {"local": "local models", "pooled": "the pooled model"}


def gain_figures(result: FitResult) -> list[Figure]:
    """For each baseline: clients in order of their gain, and gain by number of rows."""
    out = []
    for other, name in OTHERS.items():
        gain, rows, labels = gains_of(result, other)
        if result.recommended == other or not np.any(gain):
            continue
        named = [words.short(v) for v in labels] if len(labels) <= NAMED else []
        out.append(_sorted_gains(gain, named, name, result))
        out.append(_gains_by_rows(gain, rows, named, name, result))
    return out


def gains_of(result: FitResult, other: str) -> tuple[Floats, Floats, list[Any]]:
    """Gains over a baseline of the clients that have one (k,), their rows (k,) and labels."""
    frame = result.client_gains
    if f"gain_over_{other}" not in frame:
        return np.zeros(0), np.zeros(0), []
    frame = frame[np.isfinite(frame[f"gain_over_{other}"])]
    gain, rows = (frame[name].to_numpy(dtype=np.float64) for name in (f"gain_over_{other}", "rows"))
    return gain, rows, list(frame.index)


def _sorted_gains(gain: Floats, labels: list[str], other: str, result: FitResult) -> Figure:
    """An area from the zero line to each client's gain, worst first."""
    order = np.argsort(gain, kind="stable")
    value, m = gain[order], len(gain)
    down, up = int((gain < 0).sum()), int((gain > 0).sum())
    axes = Axes((0.0, float(m)), spread(value, zero=True), whole=True)
    parts = []
    for kind, start, stop in (("loss", 0, down), ("gain", m - up, m)):
        if start == stop:
            continue
        edges = start + evenly(stop - start + 1, 401)
        # The mean of each run of clients stands for it; where there are few, each is its own run.
        sums = np.concatenate([[0.0], np.cumsum(value[start:stop])])
        height = np.diff(sums[edges - start]) / np.diff(edges)
        x, y, base = axes.across(edges), axes.down(height), float(axes.down(0.0))
        steps = "".join(f"V{b:.1f}H{a:.1f}" for a, b in zip(x[1:], y, strict=True))
        parts.append(mark("path", f"area {kind}", d=f"M{x[0]:.1f} {base:.1f}{steps}V{base:.1f}Z"))
    parts.append(axes.level("zero", 0.0))
    if labels:
        wide = f"{(axes.end - axes.left) / m:.2f}"
        for x, k in zip(axes.across(np.arange(m)), order, strict=True):
            title = f"{labels[k]}: {words.number(gain[k])}"
            parts.append(mark("rect", "hover", title, x=x, y=axes.top, width=wide, height=axes.base - axes.top))
    client, median = result.model.client_name, words.number(float(np.median(gain)))
    svg = axes.draw(
        parts,
        f"Gain of each of {words.counted(m, client)} over {other} in held-out {result.loss}, sorted: "
        f"{down:,} do worse, {up:,} better, median {median}.",
        f"{words.several(client)}, from the greatest loss to the greatest gain",
        f"gain ({result.loss})",
    )
    said = f"On held-out rows {up:,} do{'es' * (up == 1)} better and {down:,} worse, noise included; "
    said += f"the median gain is {median}.{_cut(axes, gain)}"
    return Figure(f"Gain over {other}, from worst to best", svg, said)


def _gains_by_rows(gain: Floats, rows: Floats, labels: list[str], other: str, result: FitResult) -> Figure:
    """A point for each client, or where there are many a grid of cells, darker where more clients lie."""
    low, high = float(rows.min()), float(rows.max())
    wide = high > 8 * max(low, 1.0)
    ends = (max(low, 0.5) / 1.15, high * 1.15) if wide else (low - 1.0, high + 1.0)
    axes = Axes(ends, spread(gain, zero=True), log=wide, whole=True)
    x, y = axes.across(np.maximum(rows, 0.5)), axes.down(gain)
    parts = [axes.level("zero", 0.0)]
    if labels:
        for label, value, a, b in zip(labels, gain, x, y, strict=True):
            kind = "gain" if value >= 0 else "loss"
            parts.append(mark("circle", f"dot {kind}", f"{label}: {words.number(value)}", cx=a, cy=b, r=3.4))
    else:
        parts += _cells(x, y, gain)
    many, client = words.several(result.model.client_name), words.one(result.model.client_name)
    named = words.counted(len(gain), result.model.client_name)
    each = f"Each point is a {client}" if labels else f"Each cell is a group of {many}, stronger where they are more"
    svg = axes.draw(
        parts,
        f"Gain of each of {named} over {other} against its number of rows.",
        f"rows of the {client}{' (logarithmic)' if wide else ''}",
        f"gain ({result.loss})",
    )
    return Figure(f"Gain over {other}, by number of rows", svg, f"{each}.{_cut(axes, gain)}")


def _cells(x: Floats, y: Floats, gain: Floats, size: float = 8.0) -> list[str]:
    column, row = ((v // size).astype(np.int64) for v in (x, y))
    cells, inverse = np.unique(np.stack([column, row]), axis=1, return_inverse=True)
    count = np.bincount(inverse.ravel())
    mean = np.bincount(inverse.ravel(), gain) / count
    shade = 0.18 + 0.82 * np.log1p(count) / np.log1p(count.max())
    kinds, wide = np.where(mean >= 0, "cell gain", "cell loss"), size - 0.6
    return [
        mark("rect", kind, x=c * size, y=r * size, width=wide, height=wide, opacity=f"{o:.2f}")
        for c, r, kind, o in zip(*cells, kinds, shade, strict=True)
    ]


def _cut(axes: Axes, values: Floats) -> str:
    beyond = axes.beyond(values)
    return f" {beyond:,} beyond the frame {'is' if beyond == 1 else 'are'} drawn at its edge." if beyond else ""


def shrinkage_figures(result: FitResult, terms: int = 4) -> list[Figure]:
    """How clients are pulled toward their clusters, a picture for each of the first personal terms."""
    m = result.model
    spare = np.ptp(m.client, axis=0) > 0  # a standard deviation of equal numbers may be rounded to more
    chosen = [int(j) for j in m.personal if spare[j]][:terms]
    if not chosen:
        return []
    order = np.argsort(m.client[:, chosen[0]], kind="stable")
    picked = order[evenly(len(order), LINES)]
    local = result.local_coefficients
    out = []
    for j in chosen:
        if local is not None and m.terms[j] in local:
            alone = local[m.terms[j]].reindex(m.labels).to_numpy(dtype=np.float64)
            out.append(_shrinkage(result, j, picked, alone, _centres(result, j)))
        else:
            out.append(_intervals(result, j))
    return out


def _centres(result: FitResult, j: int) -> Floats:
    """(m,): the coefficient of each client's cluster, or that of all clients."""
    m = result.model
    return m.nodes[0][m.clusters, j] if words.centre(m) else np.full(len(m.labels), m.root[j])


def estimates(result: FitResult, j: int) -> tuple[Ints, Floats, Floats, Floats]:
    """Clients in the order of a coefficient, at most ``LINES``.

    Positions, coefficients, 1.96 times their standard errors (NaN where there are none), and the coefficients of their
    clusters, each (k,).
    """
    order = np.argsort(result.model.client[:, j], kind="stable")
    picked = order[evenly(len(order), LINES)]
    half = 1.96 * result.client_std_errors.to_numpy()[picked, j]
    return picked, result.model.client[picked, j], half, _centres(result, j)[picked]


def _shrinkage(result: FitResult, j: int, picked: Ints, alone: Floats, centre: Floats) -> Figure:
    """Lines from each client's own estimate to its fitted one, and on to its cluster."""
    m = result.model
    fitted = m.client[:, j]
    low, high = spread(np.concatenate([fitted, centre]), tail=0.0)
    wide = spread(alone, tail=0.02)
    axes = Axes((0.0, 2.0), (min(low, wide[0]), max(high, wide[1])), right=26.0, bottom=26.0)
    x = axes.across([0.12, 1.0, 1.9])
    places = np.stack([axes.down(v[picked]) for v in (np.nan_to_num(alone), fitted, centre)], axis=1)
    parts = []
    for client, y in zip(picked, places, strict=True):
        if np.isfinite(alone[client]):
            estimates = f"{words.number(alone[client])} alone, {words.number(fitted[client])} {m.method}"
            parts.append(mark("path", "pull", f"{words.short(m.labels[client])}: {estimates}", d=line(x[:2], y[:2])))
        parts.append(mark("path", "tie", d=line(x[1:], y[1:])))
    homes = np.unique(places[:, 2].round(1))
    kind = "bar" if len(homes) <= 20 else "bar thin"
    parts += [mark("path", kind, d=f"M{x[2] - 5:.1f} {y:.1f}h10") for y in homes]
    many, cluster = words.several(m.client_name), words.centre(m)
    group = f"its {words.one(cluster)}" if cluster else f"the model of all {many}"
    parts += [text(at, axes.base + 17, side) for at, side in zip(x, ("alone", m.method), strict=False)]
    last = words.short(group if cluster else f"all {many}", 20)
    parts.append(text(axes.width - 2, axes.base + 17, last, anchor="end"))
    said, ratio, beyond = list[str](), _kept(alone, fitted, centre), axes.beyond(alone)
    if ratio:
        median = f"The median {words.one(m.client_name)} keeps {words.percent(ratio)}"
        said.append(f"{median} of its distance from {group}.")
    said += _drawn(result, picked)
    said += [f"{beyond:,} local estimates lie beyond the frame."] if beyond else []
    name = _term(m.terms[j])
    label = f"{name}: estimates of {many} alone, {m.method}, and of {group}."
    return Figure(name, axes.draw(parts, label, y_title=unit(result, j), ticks="y"), " ".join(said))


def _kept(alone: Floats, fitted: Floats, centre: Floats) -> float:
    """The median share of a client's own deviation that the fit keeps; 0 where that says nothing."""
    far = np.isfinite(alone) & (np.abs(alone - centre) > 0)
    if not far.any():
        return 0.0
    share = float(np.median(((fitted - centre)[far]) / ((alone - centre)[far])))
    return share if 0.0 < share < 1.0 else 0.0


def _intervals(result: FitResult, j: int) -> Figure:
    """Each client's coefficient with its 95% interval, in order, and its cluster's."""
    m, (picked, value, half, around) = result.model, estimates(result, j)
    with_intervals, half = " with 95% intervals" * bool(np.isfinite(half).all()), np.nan_to_num(half)
    ends = spread(np.concatenate([value - half, value + half, around]), tail=0.0)
    axes = Axes((-1.0, float(len(value))), ends)
    x = axes.across(np.arange(len(value)))
    low, at, high, middle = (axes.down(v) for v in (value - half, value, value + half, around))
    parts = [mark("path", "pull", d=f"M{a:.1f} {b:.1f}V{c:.1f}") for a, b, c in zip(x, low, high, strict=True)]
    titles = [f"{words.short(m.labels[k])}: {words.number(v)}" for k, v in zip(picked, value, strict=True)]
    parts += [mark("circle", "point", t, cx=a, cy=b, r=2.0) for t, a, b in zip(titles, x, at, strict=True)]
    parts += [mark("path", "bar", d=f"M{a - 2:.1f} {b:.1f}h4") for a, b in zip(x, middle, strict=True)]
    many, cluster, name = words.several(m.client_name), words.centre(m), _term(m.terms[j])
    group = f"of their {words.one(cluster)}" if cluster else f"of the model of all {many}"
    label = f"{name}: the coefficient of each of {len(value):,} {many}{with_intervals}, in order."
    said = [f"Points: {many}{with_intervals}, in order; bars: the coefficient {group}.", *_drawn(result, picked)]
    return Figure(name, axes.draw(parts, label, f"{many}, in order", unit(result, j), ticks="y"), " ".join(said))


def unit(result: FitResult, j: int) -> str:
    """What a coefficient is in: the outcome, or what the model predicts of it, for one more of its column."""
    outcome, predictor = result.formula.partition("~")[0].strip(), family_named(result.family).predictor
    per = "" if result.model.terms[j] == "(Intercept)" else f" for one more of {result.model.terms[j]}"
    return words.short(f"{outcome if predictor == 'outcome' else predictor}{per}", 60)


def _drawn(result: FitResult, picked: Ints) -> list[str]:
    """How many clients are drawn, where not all are."""
    total, many = len(result.model.labels), words.several(result.model.client_name)
    return [f"{len(picked)} of {total:,} {many} are drawn."] if len(picked) < total else []


def _term(term: str) -> str:
    return "Intercept" if term == "(Intercept)" else term


def qq_figure(result: FitResult) -> list[Figure]:
    """Quantiles of the residuals against those of a normal distribution, where there are any."""
    if not result.fit_check:
        return []
    theory, seen = (np.asarray(part, dtype=np.float64) for part in result.fit_check["qq"])
    most = max(3.0, float(np.abs(theory).max()), min(float(np.abs(seen).max()), 6.0)) * 1.05
    axes = Axes((-most, most), (-most, most))
    diagonal = np.array([-most, most])
    parts = [mark("path", "zero", d=line(axes.across(diagonal), axes.down(diagonal)))]
    parts += [
        mark("circle", "point", cx=x, cy=y, r=2.2) for x, y in zip(axes.across(theory), axes.down(seen), strict=True)
    ]
    label = f"Quantiles of the residuals, {seen[0]:.2f} to {seen[-1]:.2f}, against {theory[0]:.2f} to {theory[-1]:.2f}."
    svg = axes.draw(parts, label, "quantiles of a normal distribution", "quantiles of the residuals")
    caption = "On the line where the model fits. Ends above it on the right and below it on the left are heavy tails."
    return [Figure("Residuals", svg, caption)]


def loss_curve(result: FitResult) -> Figure:
    """Mean training loss over rounds."""
    trace = np.array(result.model.info["training"]["trace"], dtype=np.float64)
    rounds, loss = trace[np.isfinite(trace[:, 1])].T if np.isfinite(trace[:, 1]).any() else np.zeros((2, 1))
    room = 0.05 * float(loss.max() - loss.min()) or 1.0
    frame = (float(loss.min()) - room, float(loss.max()) + room)
    axes = Axes((0.0, max(float(rounds.max()), 1.0)), frame, whole=True)
    parts = [mark("path", "bar thin", d=line(axes.across(rounds), axes.down(loss)))]
    looks, first, last = plural(len(loss), "look"), words.number(loss[0]), words.number(loss[-1])
    label = f"Mean loss of rows over {looks}, from {first} to {last}."
    note = "Mean loss of the rows to train on, as negative log-likelihood without constants; of numbers per variance."
    return Figure("Loss over rounds", axes.draw(parts, label, "rounds", "mean loss of rows"), note)


def distance_figure(result: FitResult) -> Figure:
    """The logarithm of the distance left against communications."""
    r = result.model.info["rounds"]
    k = len(result.model.levels[0].labels) if result.model.levels else 1
    trace = np.array([(between + within / k, gap) for _, gap, between, within in r["trace"] if gap > 0.0])
    sent, left = (trace[:, 0], np.log10(trace[:, 1])) if len(trace) else (np.zeros(1), np.zeros(1))
    low, high = min(float(left.min()), -1.0), max(float(left.max()), 0.0)
    axes = Axes((0.0, max(float(sent.max()), 1.0)), (low - 0.1, high + 0.1))
    parts = [mark("path", "bar thin", d=line(axes.across(sent), axes.down(left)))]
    looks, gap = plural(len(left), "look"), words.number(r["gap"])
    label = f"Distance from the exact optimum over {looks}, to {gap} of that of the start."
    return Figure(
        "Distance left against communications",
        axes.draw(parts, label, "communications of a cluster", "distance left, power of ten"),
        "Distance from the exact optimum relative to that of the start, all coefficients of all clients together.",
    )


_ENDS = {0.0: "without ties", np.inf: "where all of a component are one"}


def strength_figure(tried: list[tuple[float, float]], chosen: float, loss: str) -> Figure:
    """Mean held-out loss along the path, from clients alone to one model for each component."""
    at = [(float(lam), float(value)) for lam, value in tried[::-1]]
    inside = np.array([(np.log10(lam), value) for lam, value in at if 0.0 < lam < np.inf])
    ends = {lam: value for lam, value in at if lam in (0.0, np.inf)}
    if not len(inside):
        inside = np.array([(0.0, value) for value in ends.values()])
    x, y = inside.T
    low, high = min(*y, *ends.values()), max(*y, *ends.values())
    room = 0.05 * (high - low) or 1.0
    axes = Axes((float(x.min()) - 0.3, float(x.max()) + 0.3), (low - room, high + room))
    parts = [mark("path", "bar thin", d=line(axes.across(x), axes.down(y)))]
    lowest, where = words.number(min(value for _, value in at), 4), words.strength(chosen)
    label = f"Mean held-out {loss} at {plural(len(at), 'strength')}; the lowest, {lowest}, at {where}."
    said = ", ".join(f"{words.number(ends[lam], 4)} {name}" for lam, name in _ENDS.items() if lam in ends)
    return Figure(
        "Why this strength",
        axes.draw(parts, label, "strength of ties, power of ten", f"held-out {loss}"),
        f"Inside the training rows: {lowest} at {where}; {said}.",
    )
