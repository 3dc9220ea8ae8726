"""Predictions: each row is answered by its client's coefficients, or by the finest ancestor that the model knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.data.clients import Level
from coterie.data.columns import rows_text
from coterie.data.labels import Labels, encode, find_labels, label_text, numbered, resembling
from coterie.errors import CoterieError
from coterie.families import Family, family_named
from coterie.numerics.arrays import Floats, Ints, pack
from coterie.results.model import Model

Scale = Literal["response", "link"]

_BLOCK = 1 << 15  # rows at a time, so that gathered coefficients stay in cache


@dataclass(frozen=True, eq=False)
class Nodes:
    """A model's tree, level by level: 0 the clients, then the clusters fine to coarse, last the root.

    Attributes
    ----------
    model : Model
    """

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
        """The level and the place in it that answers each row.

        A level whose nodes all equal their parents answers nothing: its parents do.

        Parameters
        ----------
        clients : (n,) labels
        clusters : dict of (n,) labels, by level name

        Returns
        -------
        level, place : (n,) int64
        moved : int
            Rows whose client was in another cluster when the model was fitted; the client's own model answers them.
        """
        place = find_labels(self.model.labels, clients)
        level = np.where(place >= 0, 0, len(self.names) - 1)
        moved = np.zeros(len(place), dtype=bool)
        above = np.where(place >= 0, self.parents[0][place], -1)
        for at, known in enumerate(self.levels, start=1):
            if known.name in clusters:
                found = find_labels(known.labels, clusters[known.name])
                moved |= (level == 0) & (found >= 0) & (found != above)
                use = (level > at) & (found >= 0)
                level[use], place[use] = at, found[use]
            above = np.where(above >= 0, self.parents[at][above], -1)
        place[level == len(self.names) - 1] = 0
        for at, parent in enumerate(self.parents):
            if not self.varies[at]:
                here = level == at
                place[here] = parent[place[here]]
                level[here] = at + 1
        return level, place, int(moved.sum())

    def below(self, level: int) -> Floats | None:
        """Packed covariance (1 or k, P) of an unknown client around a node of this level; None where nothing is known.

        Methods without variances (local models, for one) do not say how far the next client may stray.
        """
        m = self.model
        if any(self.varies[:level]) and not m.has_variances:
            return None
        if level == 0:
            return np.zeros((1, pack(m.root_cov).size))
        D = m.D_client
        if len(D) > 1 and level > 1:
            sizes = np.bincount(self.parents[0], minlength=len(D))
            D = np.average(D, axis=0, weights=sizes)[None]
        for upper in m.D_levels[: level - 1]:
            D = D + upper
        return pack(D)


@dataclass(frozen=True, eq=False)
class Answers:
    """Predictions of n rows.

    Attributes
    ----------
    prediction : (n,) float64
    level : (n,) int64
        Which of `names` answered.
    names : tuple of str
    lower, upper : (n,) float64 or None
        NaN for rows of unseen clients where the method does not say how clients differ.
    moved : int
        Rows whose client was in another cluster when the model was fitted.
    """

    prediction: Floats
    level: Ints
    names: tuple[str, ...]
    lower: Floats | None
    upper: Floats | None
    moved: int


def predict_rows(
    model: Model,
    X: Floats,
    clients: Any,
    clusters: Mapping[str, Any] | None = None,
    offset: Floats | None = None,
    interval: float | None = None,
    scale: Scale = "response",
) -> Answers:
    """Predict rows of a design matrix.

    Parameters
    ----------
    model : Model
    X : (n, p) float64
        In the order of ``model.terms``.
    clients : (n,) labels
        Missing ones count as never seen.
    clusters : dict of (n,) labels by level name, optional
        Used for clients never seen: the finest known cluster answers.
    offset : (n,) float64, optional
        Added to the linear predictor.
    interval : float, optional
        Probability inside, such as 0.9. Gaussian: of a new outcome; binomial and Poisson: of the mean.
    scale : {"response", "link"}, default "response"

    Returns
    -------
    Answers

    Raises
    ------
    CoterieError
        For an interval that is no probability, an unknown scale, and intervals of a model without covariances.
    """
    if scale not in ("response", "link"):
        raise CoterieError(f"type must be 'response' or 'link', not {scale!r}.")
    nodes, mean = Nodes(model), family_named(model.family).mean
    level, place, moved = nodes.locate(clients, clusters or {})
    eta = np.empty(len(X))
    variance = None if interval is None else np.empty(len(X))
    z = 0.0 if interval is None else _quantile(interval)
    for at in range(len(nodes.names)):
        here = np.flatnonzero(level == at)
        if len(here):
            _fill(nodes, at, X, here, place, eta, variance)
    if offset is not None:
        eta += offset
    lower = upper = None
    if variance is not None:
        half = z * np.sqrt(variance + _residual(model, level == 0, place))
        lower, upper = eta - half, eta + half
        if scale == "response":
            lower, upper = mean(lower), mean(upper)
    if scale == "response":
        eta = mean(eta)
    return Answers(eta, level, nodes.names, lower, upper, moved)


TOO_LARGE = "none: the prediction is too large a number"


def too_large(a: Answers, why: Ints, reasons: list[str], missing: str) -> tuple[Ints, list[str], npt.NDArray[np.bool_]]:
    """Empty what overflows, in place: predictions that are no numbers, and intervals of which an end is none.

    Parameters
    ----------
    a : Answers
    why, reasons
        Of rows that cannot be read: see :func:`coterie.results.prediction_rows.read_rows`.
    missing : {"error", "empty"}

    Returns
    -------
    why, reasons
        With the rows whose predictions are too large.
    endless : (n,) bool
        Rows of which only the interval is.

    Raises
    ------
    CoterieError
        For such predictions, unless `missing` is "empty".
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
            f"{rows} of a {model.client_name} that was in another cluster when the model was fitted; "
            "its own model answered."
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
            f"{len(strange):,} of the {len(labels):,} labels of '{name}' were never seen, such as {first!r}: did you "
            f"mean {meant!r}? Write labels as the fitted table did."
        ]
    rest = f" {more:,} more may be slips too." if more else ""
    return [f"The {name} {first!r} was never seen: did you mean {meant!r}?{rest}"]


def _residual(model: Model, seen: Any, place: Ints) -> Floats | float:
    """Variance of a new outcome around its mean; 0 for families whose intervals are for the mean."""
    if not family_named(model.family).has_dispersion:
        return 0.0
    if model.client_sigma2 is None:
        return model.sigma2
    return np.where(seen, model.client_sigma2[np.where(seen, place, 0)], model.sigma2)


def _quantile(interval: float) -> float:
    if isinstance(interval, bool) or not isinstance(interval, (int, float)) or not 0.0 < interval < 1.0:
        raise CoterieError(f"interval must be a probability between 0 and 1, such as 0.9, not {interval!r}.")
    return NormalDist().inv_cdf(0.5 + float(interval) / 2.0)


def _fill(nodes: Nodes, at: int, X: Floats, rows: Ints, place: Ints, eta: Floats, variance: Floats | None) -> None:
    """Linear predictor, and its variance, of the rows that one level answers."""
    table, packed, below = nodes.coefficients[at], nodes.covariances[at], None
    if variance is not None:
        if packed is None:
            raise CoterieError(f"The method '{nodes.model.method}' has no intervals for its clients.")
        below = nodes.below(at)
    i, j = np.tril_indices(X.shape[1])
    twice = np.where(i == j, 1.0, 2.0)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        x, node = X[block], place[block]
        with np.errstate(over="ignore", invalid="ignore"):
            eta[block] = np.einsum("np,np->n", x, table[node])
        if variance is None or packed is None:
            continue
        if below is None:
            variance[block] = np.nan
            continue
        V = packed[node] + (below if len(below) == 1 else below[node])
        with np.errstate(over="ignore", invalid="ignore"):  # x'Vx that overflows is infinite, and so said
            spread = np.einsum("np,np->n", x[:, i] * x[:, j] * twice, V)
        variance[block] = np.maximum(np.where(np.isnan(spread) & np.isfinite(V[:, 0]), np.inf, spread), 0.0)
