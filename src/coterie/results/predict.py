"""Predictions: each row is answered by its client's coefficients, or by the finest ancestor that the model knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, exp, floor, lgamma, log, sqrt
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.data.columns import BadRows, Kind, at_rows, rows_text
from coterie.data.design import INTERCEPT, Design
from coterie.data.labels import Labels, encode, find_labels, label_text, numbered, resembling
from coterie.data.table import Table
from coterie.errors import CoterieError, plural
from coterie.families import Family
from coterie.methods.tree.variance_posterior import half_widths, mean_over_scale
from coterie.numerics.arrays import Bools, Floats, Ints, kernel
from coterie.results.model import Model, Nodes

Scale = Literal["response", "link"]
IntervalOf = Literal["auto", "mean", "outcome"]

_BLOCK = 1 << 15  # rows at a time, so that gathered coefficients stay in cache


@dataclass(frozen=True, eq=False)
class Answers:
    """Predictions of n rows."""

    prediction: Floats
    level: Ints  # which of `names` answered
    names: tuple[str, ...]
    lower: Floats | None  # NaN for rows of unseen clients where the method does not say how clients differ
    upper: Floats | None
    moved: int  # rows whose client was in another cluster when the model was fitted


def predict_rows(
    model: Model,
    X: Floats,
    clients: Any,
    clusters: Mapping[str, Any] | None = None,
    offset: Floats | None = None,
    interval: float | None = None,
    type: Scale = "response",
    weights: Floats | float = 1.0,
    outcome: bool | None = None,
) -> Answers:
    """Predict rows X (n, p) of a design matrix, in the order of ``model.terms``; (n, p - 1) where 1 is the first.

    ``clients`` are labels (n,), of which missing ones count as never seen; ``clusters`` are labels by level name, and
    the finest known one answers for clients never seen. ``offset`` is added to the linear predictor, and ``weights``
    (n,) are relative to the mean of the fitted rows, or trials. ``outcome``: whether intervals are of outcomes or of
    means; None for what is usual in the family. The others are as in ``FitResult.predict``. A CoterieError for
    intervals of a model without covariances.
    """
    nodes, family = Nodes(model), model.scattering
    outcome = family.has_dispersion if outcome is None else outcome
    level, place, moved = nodes.locate(clients, clusters or {})
    eta = np.empty(len(X))
    variance = None if interval is None else np.empty((2, len(X)))
    for at in range(len(nodes.names)):
        here = np.flatnonzero(level == at)
        if len(here):
            _fill(nodes, at, X, here, place, eta, variance)
    if offset is not None:
        eta += offset
    lower = upper = None
    if variance is not None and interval is not None:
        if outcome and family.has_dispersion:
            noise, doubt = _residual(model, level == 0, place)
            noise = noise / weights
            variance[0] += noise
            variance[1] += doubt * noise
        if outcome and not family.has_dispersion:
            lower, upper = outcome_interval(family, eta, variance[0], interval, weights)
        else:
            half = half_widths(interval, *variance)
            lower, upper = eta - half, eta + half
            if type == "response":
                lower, upper = family.mean(lower), family.mean(upper)
    if type == "response":
        eta = family.mean(eta)
    return Answers(eta, level, nodes.names, lower, upper, moved)


TOO_LARGE = "none: the prediction is too large a number"


def too_large(a: Answers, why: Ints, reasons: list[str], missing: str) -> tuple[Ints, list[str], npt.NDArray[np.bool_]]:
    """Empty what overflows, in place: predictions that are no numbers, and intervals of which an end is none.

    ``why`` and ``reasons`` are those of :func:`coterie.results.predict.read_rows`; they come back with the rows
    whose predictions are too large, which are an error where ``missing`` is. The last are rows (n,) of which only the
    interval is.
    """
    over = (why < 0) & ~np.isfinite(a.prediction)
    if over.any() and missing == "error":
        raise CoterieError(
            f"The prediction is too large a number in {rows_text(np.flatnonzero(over))}: columns lie far from those "
            "that were fitted. Correct these rows, predict on the scale of the link, or leave them empty with "
            "missing='empty' (--missing empty)."
        )
    endless = np.zeros(len(why), dtype=bool)
    if a.lower is not None and a.upper is not None:
        endless = (why < 0) & ~over & (np.isinf(a.lower) | np.isinf(a.upper))
        a.lower[over | endless] = a.upper[over | endless] = np.nan
    if over.any():
        a.prediction[over] = np.nan
        why, reasons = np.where(over, len(reasons), why), [*reasons, TOO_LARGE]
    return why, reasons, endless


def finite_mean(family: Family, eta: Floats) -> Floats:
    """The mean outcome at a linear predictor; a CoterieError where one is too large a number."""
    values = family.mean(eta)
    if not np.isfinite(values).all():
        bad = np.flatnonzero(~np.isfinite(values))
        raise CoterieError(
            f"The prediction is too large a number in {rows_text(bad)}: X lies far from what was fitted."
        )
    return values


def notes_of(model: Model, clients: Any, clusters: Mapping[str, Any], answers: Answers, silent: bool) -> list[str]:
    """What a reader of predictions should know, in words; ``silent``: some clients have no interval."""
    notes, moved = [], answers.moved
    if moved:
        rows = "1 row is" if moved == 1 else f"{moved:,} rows are"
        notes.append(
            f"{rows} of a {model.client_name}{' or cluster' * (len(model.levels) > 1)} that was in another cluster "
            "when the model was fitted; its own model answered."
        )
    if silent:
        notes.append(
            f"The method '{model.method}' does not say how clients differ, so clients never seen have no interval."
        )
    if (elsewhere := answers.level > 0).any():
        if missing := int(encode(clients).missing.sum()):
            rows, answered = ("1 row has", "is") if missing == 1 else (f"{missing:,} rows have", "are")
            notes.append(f"{rows} no label in '{model.client_name}', and {answered} answered like clients never seen.")
        notes += slips(model.client_name, clients, model.labels)
        for level in model.levels:
            if level.name in clusters:
                notes += slips(level.name, np.asarray(clusters[level.name], dtype=object)[elsewhere], level.labels)
    return notes


def slips(name: str, values: Any, known: Labels) -> list[str]:
    """What to say of labels that were never seen, where known ones may be meant."""
    labels = encode(values).labels
    strange = labels[find_labels(known, labels) < 0]
    if known.dtype.kind == "f":  # 2.0 is written as 2
        known = np.array([label_text(label) for label in known], dtype=object)
    pairs = resembling(strange, known) or (numbered(strange, known) if 2 * len(strange) > len(labels) else [])
    if not pairs:
        return []
    (first, meant), more = pairs[0], len(pairs) - 1
    if 2 * len(pairs) > len(labels) > 1:
        return [
            f"{len(strange):,} of the {plural(len(labels), 'label')} of '{name}' were never seen, such as {first!r}: "
            f"did you mean {meant!r}? Write labels as the fitted table did."
        ]
    rest = f" {more:,} more may be slips too." if more else ""
    return [f"The {name} {first!r} was never seen: did you mean {meant!r}?{rest}"]


def _residual(model: Model, seen: Any, place: Ints) -> tuple[Floats | float, float]:
    """Mean variance of a new Gaussian outcome around its mean, and the standard deviation of it over its mean."""
    doubt = 0.0 if model.uncertainty is None else model.uncertainty.residual
    factor = float(mean_over_scale(doubt))
    if model.client_sigma2 is None:
        return model.sigma2 * factor, doubt**0.5
    own = np.where(seen, model.client_sigma2[np.where(seen, place, 0)], model.sigma2)
    return own * factor, doubt**0.5


def _fill(nodes: Nodes, at: int, X: Floats, rows: Ints, place: Ints, eta: Floats, variance: Floats | None) -> None:
    """Linear predictor of the rows that one level answers, its variance and the standard deviation of that, (2, n)."""
    table, packed = nodes.coefficients[at], nodes.covariances[at]
    below = None if variance is None else nodes.below(at)
    p = table.shape[1]
    i, j = np.tril_indices(p)
    twice = np.where(i == j, 1.0, 2.0)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        x, node = X[block], place[block]
        if X.shape[1] < p:
            x = np.column_stack([np.ones(len(x)), x])
        with np.errstate(over="ignore", invalid="ignore"):
            eta[block] = np.einsum("np,np->n", x, table[node])
        if variance is None:
            continue
        if below is None:
            variance[:, block] = np.nan
            continue
        V = packed[node] + (below if len(below) == 1 else below[node])
        with np.errstate(over="ignore", invalid="ignore"):  # x'Vx that overflows is infinite, and so said
            square = x[:, i] * x[:, j] * twice
            spread = np.einsum("np,np->n", square, V)
            doubt = np.linalg.norm(square @ nodes.directions(at).T, axis=1)
            doubt += np.einsum("np,np->n", square, packed[node]) * np.sqrt(nodes.doubt[at][node])
        spread = np.maximum(np.where(np.isnan(spread) & np.isfinite(V[:, 0]), np.inf, spread), 0.0)
        variance[:, block] = spread, np.where(np.isfinite(doubt), doubt, 0.0)


Missing = Literal["error", "empty"]
NOTHING = "none: "
"""How the source of a row begins that has no prediction; the reason follows."""


def read_rows(
    table: Table,
    design: Design | None,
    terms: tuple[str, ...],
    offset: str | None,
    missing: Missing,
) -> tuple[Floats, Floats | None, Ints, list[str]]:
    """The columns of a model, computed from a table; without a design from columns named like its terms.

    X (n, p) is NaN in rows that cannot be read, and the offset is (n,), from its column. ``why`` (n,) is the place of a
    row's reason in the list; -1 for rows that can be read. A CoterieError for columns that are not there and, where
    ``missing`` is "error", for rows that cannot be read.
    """
    numbers = [term for term in terms if design is None and term != INTERCEPT]
    numbers += [] if offset is None else [offset]
    table.need(numbers, "model's")
    try:
        for column in numbers if missing == "error" else ():
            for what, rows in table[column].faults("number"):
                raise BadRows(f"Column '{column}' has {what} in {at_rows(rows)}.")
        if design is None:
            X = np.column_stack([np.ones(len(table)) if t == INTERCEPT else table[t].numbers for t in terms])
        else:
            choice: Literal["error", "nan"] = "nan" if missing == "empty" else "error"
            X = design.matrix(table, on_unseen=choice, on_missing=choice)
    except BadRows as e:
        raise CoterieError(
            f"{e} Correct these rows, or leave their predictions empty: missing='empty' (--missing empty)."
        ) from e
    added = None if offset is None else table[offset].floats
    why, reasons = np.full(len(table), -1, dtype=np.int64), list[str]()
    if missing == "empty":
        kinds: dict[str, Kind] = dict.fromkeys(numbers, "number")
        kinds |= {} if design is None else {c: design.kind(c) for c in design.columns}
        for what, rows in _reasons(table, design, kinds, X):
            here = rows & (why < 0)
            if here.any():
                why[here] = len(reasons)
                reasons.append(NOTHING + what)
        X[why >= 0] = np.nan
    return X, added, why, reasons


def _reasons(table: Table, design: Design | None, kinds: dict[str, Kind], X: Floats) -> Iterator[tuple[str, Bools]]:
    """Why rows cannot be read: reasons, each with the rows (n,) bool."""
    for column, kind in kinds.items():
        for what, rows in table[column].faults(kind):
            yield f"{what} in '{column}'", rows
        if design is not None and kind == "category":
            yield f"a new level of '{column}'", table[column].codes_of(design.levels[column])[1]
    broken: Bools = np.logical_not(np.isfinite(X))
    if design is not None:
        for j in np.flatnonzero(broken.any(axis=0)):
            if spline := design.parsed.spline_of(design.terms[j]):
                yield f"a value outside the range of '{spline}'", broken[:, j]
    yield "a term that is not finite", np.asarray(broken.any(axis=1))


NODES, LIGHT = 32, 1e-6  # at which a linear predictor is integrated, but for those of so little mass
DOUBLINGS, HALVINGS = 40, 60  # of what bounds a quantile
HUGE = 1e300  # mean that is as good as infinite
SOME, MANY = 20.0, 1e5  # means above which counts are as good as continuous: where nodes lie far apart, and always


def outcome_interval(
    family: Family, eta: Floats, variance: Floats, probability: float, trials: Floats | float = 1.0
) -> tuple[Floats, Floats]:
    """Lower and upper ends (n,) for linear predictors (n,) with these variances; NaN where one is not finite.

    Outcomes 0 and 1 have one value for an interval where it alone is likely enough, else both; of several ``trials``
    (n,) the ends are shares.
    """
    t, mass = np.polynomial.hermite_e.hermegauss(NODES)
    t, mass = t[mass > LIGHT], mass[mass > LIGHT]
    mass /= mass.sum()
    if family.cdf is not None and (not family.two_classes or isinstance(trials, np.ndarray)):
        ends = _tails(family, eta, np.sqrt(variance), t, mass, probability, np.broadcast_to(trials, eta.shape))
    elif family.two_classes:
        one = np.full(len(eta), 0.0)
        for node, weight in zip(t, mass, strict=True):
            one += weight * family.mean(eta + node * np.sqrt(variance))
        ends = np.stack([one >= probability, 1.0 - one < probability]).astype(np.float64)
    else:
        ends = np.empty((2, len(eta)))
        many = (eta > log(MANY)) | ((eta > log(SOME)) & (eta + np.log(np.maximum(variance, 1e-300)) > log(16.0)))
        _shortest(np.where(many, np.nan, eta), np.sqrt(variance), t, mass, probability, ends)
        width = NormalDist().inv_cdf(0.5 + probability / 2.0) * np.sqrt(variance[many] + np.exp(-eta[many]))
        ends[:, many] = np.floor(family.mean(eta[many] - width)), np.ceil(family.mean(eta[many] + width))
    ends[:, ~np.isfinite(eta + variance)] = np.nan
    return ends[0], ends[1]


def _tails(
    family: Family, eta: Floats, sd: Floats, t: Floats, mass: Floats, probability: float, trials: Floats
) -> Floats:
    """Quantiles (2, n) of outcomes, of shares where there are trials, by bisection."""

    def at_most(values: Floats) -> Floats:
        each = [family.at_most(values, eta + node * sd, trials) for node in t]
        return np.asarray(np.tensordot(mass, each, axes=1))

    ends, sound = np.empty((2, len(eta))), np.isfinite(eta + sd + trials)
    size = family.mean(np.minimum(eta, log(HUGE)))
    if family.any_number or family.counted:
        size = np.full(len(eta), family.scale) if family.any_number else np.maximum(size, 1.0)
    for k, goal in enumerate((0.5 - probability / 2.0, 0.5 + probability / 2.0)):
        low, high = eta * family.any_number - size, eta * family.any_number + size
        for _ in range(DOUBLINGS):
            high = np.where(sound & (at_most(high) < goal), 2.0 * high - eta * family.any_number, high)
            if family.any_number:
                low = np.where(sound & (at_most(low) >= goal), 2.0 * low - eta, low)
        for _ in range(HALVINGS):
            middle = np.floor((low + high) / 2.0) if family.counted else (low + high) / 2.0
            enough = at_most(middle) >= goal
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        ends[k] = high
    return np.where(sound, ends / trials if family.two_classes else ends, np.nan)


@kernel
def _shortest(eta: Floats, sd: Floats, t: Floats, mass: Floats, probability: float, ends: Floats) -> None:
    """The shortest intervals of Poisson counts that hold the probability, over nodes of the linear predictor."""
    for r in range(len(eta)):
        if not (eta[r] + sd[r] < 30.0):
            continue
        low, high = exp(eta[r] + sd[r] * t[0]), exp(min(eta[r] + sd[r] * t[-1], 15.0))
        first = int(max(0.0, floor(low - 8.0 * sqrt(low) - 10.0)))
        density = np.zeros(ceil(high + 8.0 * sqrt(high) + 20.0) + 1 - first)
        for j in range(len(t)):
            mean = exp(min(eta[r] + sd[r] * t[j], 15.0))
            k = int(max(0.0, floor(mean - 8.0 * sqrt(mean) - 10.0)))
            term = exp(k * log(mean) - mean - lgamma(k + 1.0)) * mass[j]
            while k <= mean + 8.0 * sqrt(mean) + 20.0:
                density[k - first] += term
                k += 1
                term *= mean / k
        start, held, best, at = 0, 0.0, len(density) - 1, 0
        for k in range(len(density)):
            held += density[k]
            while held - density[start] >= probability:
                held -= density[start]
                start += 1
            if held >= probability and k - start < best:
                best, at = k - start, start
        ends[0, r], ends[1, r] = first + at, first + at + best
