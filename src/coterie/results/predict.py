"""Predictions: each row is answered by its client's coefficients, or by the finest ancestor that the model knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.data.clients import Level
from coterie.data.columns import BadRows, Kind, at_rows, rows_text
from coterie.data.design import INTERCEPT, Design
from coterie.data.labels import Labels, encode, find_labels, label_text, numbered, resembling
from coterie.data.table import Table
from coterie.errors import CoterieError, plural
from coterie.families import Family
from coterie.numerics.arrays import Bools, Floats, Ints, pack
from coterie.relations.covariance import half_widths, mean_over_scale
from coterie.results.model import Model
from coterie.results.outcome_intervals import outcome_interval

Scale = Literal["response", "link"]
IntervalOf = Literal["auto", "mean", "outcome"]

_BLOCK = 1 << 15  # rows at a time, so that gathered coefficients stay in cache


@dataclass(frozen=True, eq=False)
class Nodes:
    """A model's tree, level by level: 0 the clients, then the clusters fine to coarse, last the root."""

    model: Model

    @property
    def levels(self) -> tuple[Level, ...]:
        """The cluster levels that the method uses: those it has coefficients for."""
        return self.model.levels[: len(self.model.nodes)]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What answers at each level: "client", "cluster" (or the columns' names if there are several), "global"."""
        levels = self.levels
        if len(levels) == 1:
            return ("client", "cluster", "global")
        taken = ("client", "global")
        return ("client", *(f"{v.name} (cluster)" if v.name in taken else v.name for v in levels), "global")

    @cached_property
    def parents(self) -> tuple[Ints, ...]:
        """Each node's place in the next coarser level; the root has none."""
        m = self.model
        return (
            m.clusters if self.levels else np.zeros(len(m.labels), dtype=np.int64),
            *(v.parent for v in self.levels[:-1]),
            *(np.zeros(len(v.labels), dtype=np.int64) for v in self.levels[-1:]),
        )

    @cached_property
    def coefficients(self) -> tuple[Floats, ...]:
        """(k, p) for each level."""
        m = self.model
        return (m.client, *m.nodes[: len(self.levels)], m.root[None])

    @cached_property
    def covariances(self) -> tuple[Floats | None, ...]:
        """Packed (k, P) for each level."""
        m = self.model
        return (m.client_cov, *m.node_cov[: len(self.levels)], pack(m.root_cov)[None])

    @cached_property
    def varies(self) -> tuple[bool, ...]:
        """Whether any node of a level differs from its parent; True for the root."""
        pairs = zip(self.coefficients[:-1], self.coefficients[1:], self.parents, strict=True)
        return (*(not np.allclose(own, above[parent], rtol=1e-10, atol=0.0) for own, above, parent in pairs), True)

    def locate(self, clients: Any, clusters: Mapping[str, Any]) -> tuple[Ints, Ints, int]:
        """The level (n,) and the place in it (n,) that answers each row, of labels (n,), those of clusters by level.

        A level whose nodes all equal their parents answers nothing: its parents do. The number is that of rows whose
        client, or cluster, was in another cluster when the model was fitted; its own model answers them.
        """
        place = find_labels(self.model.labels, clients)
        level = np.where(place >= 0, 0, len(self.names) - 1)
        moved = np.zeros(len(place), dtype=bool)
        above = np.where(place >= 0, self.parents[0][place], -1)
        for at, known in enumerate(self.levels, start=1):
            if known.name in clusters:
                found = find_labels(known.labels, clusters[known.name])
                moved |= (above >= 0) & (found >= 0) & (found != above)
                use = (level > at) & (found >= 0)
                level[use], place[use], above[use] = at, found[use], found[use]
            above = np.where(above >= 0, self.parents[at][above], -1)
        place[level == len(self.names) - 1] = 0
        for at, parent in enumerate(self.parents):
            if not self.varies[at]:
                here = level == at
                place[here] = parent[place[here]]
                level[here] = at + 1
        return level, place, int(moved.sum())

    @cached_property
    def doubt(self) -> tuple[Floats, ...]:
        """Relative variances (k,) of each level's covariances; zero where variances are taken as known."""
        u = self.model.uncertainty
        if u is None:
            return tuple(np.zeros(len(c)) for c in self.coefficients)
        return (u.client, *u.nodes[: len(self.levels)], np.zeros(1))

    def directions(self, level: int) -> Floats:
        """Packed (n, P): those in which the covariance of who hangs, unknown, on a node may be another one.

        For the root they are those of its own covariance too, beside which the relative variance is zero.
        """
        u, P = self.model.uncertainty, pack(self.model.root_cov).size
        if u is None:
            return np.empty((0, P))
        own = [u.root] if level == len(self.names) - 1 else [np.zeros_like(u.root)]
        return pack(np.stack([*own, *u.levels[:level]]).sum(axis=0))

    def below(self, level: int) -> Floats | None:
        """Packed covariance (1 or k, P) of an unknown client around a node of this level; None where nothing is known.

        Methods without variances (local models, for one) do not say how far the next client may stray.
        """
        m = self.model
        if any(self.varies[:level]) and not m.has_variances:
            return None
        if level == 0:
            return np.zeros((1, pack(m.root_cov).size))
        D, more = m.D_client, (np.zeros(1),) * (len(m.D_levels) + 1)
        if m.uncertainty is not None:
            D, more = D + m.uncertainty.more[0], m.uncertainty.more
        if len(D) > 1 and level > 1:
            sizes = np.bincount(self.parents[0], minlength=len(D))
            D = np.average(D, axis=0, weights=sizes)[None]
        for upper, extra in zip(m.D_levels[: level - 1], more[1:], strict=False):
            D = D + upper + extra
        return pack(D)


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
    table, packed, below = nodes.coefficients[at], nodes.covariances[at], None
    if variance is not None:
        if packed is None:
            raise CoterieError(
                f"The method '{nodes.model.method}' has no intervals for its clients: leave interval out."
            )
        below = nodes.below(at)
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
        if variance is None or packed is None:
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
