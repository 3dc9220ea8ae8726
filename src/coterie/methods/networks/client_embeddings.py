"""Where clients are compared (paper 003, IV-A): their data, the dependence of their columns, or their models.

In the data space a client is the mean embedding of its rows in the space of a kernel. The squared distance of two
embeddings is the maximum mean discrepancy (MMD^2) of the clients' rows [1]_ under a Gaussian kernel, here with random
Fourier features [2]_: every client sends a few hundred numbers, means over its rows. It is the estimate with a bias:
each client of n rows adds ``(1 - mean kernel of two of its rows) / n``, so that clients of few rows are far from all.

In the feature space it is the covariance matrix of its columns; of a net with personal layers, that of the features
which the shared layers give to these. A client of few rows, or with a constant column, has a
singular covariance, and one of one row has none. So each is drawn towards the covariance S within all clients, as if
``prior`` rows had it::

    S_i = ((n_i - 1) C_i + prior S) / (n_i - 1 + prior),   S = sum_i (n_i - 1) C_i / sum_i (n_i - 1)

with the client's own unbiased covariance C_i of its n_i rows, columns in standard units. One row, or none, gives S.
Directions in which nobody's rows vary are left out.

In the model space it is its local model, by coefficients or by what it predicts for shared probes. That model minimises
the client's loss plus ``prior / 2 |u|^2``, where u is its distance from the pooled model in the metric in which the
mean curvature of all rows is one: as if ``prior`` mean rows spoke for the pooled model. So clients of few rows stay
finite, and squared distances of u are, to second order, twice differences in mean loss.

References
----------
.. [1] Gretton et al. (2012), A kernel two-sample test, JMLR.
.. [2] Rahimi, Recht (2007), Random features for large-scale kernel machines, NIPS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from coterie.errors import CoterieError, listed
from coterie.families import Family
from coterie.federation import Federation, Site, Sums, require_all_replies, work
from coterie.methods.collaboration.metric_and_similarity import around_pooled
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats, Ints, full
from coterie.objectives import data_features
from coterie.objectives.glm import GLM

Reply = dict[str, Any]
CONSTANT = 1e-9  # standard deviations, relative to the mean, that rounding cannot tell from 0


def rows_of(site: Site, w: Any = None, personal: Sequence[str] = ()) -> GLM:
    """The site's rows, of any family, or what the net w makes of them before its ``personal`` layers.

    A CoterieError where the site holds nothing like a table.
    """
    if (found := data_features.comparable(site.objective, w, personal)) is None:
        raise CoterieError(
            "Clients without a table in memory are not compared by columns: take models, or give covariates."
        )
    return found


@work
def widths(site: Site, **net: Any) -> Reply:
    """How many columns there are."""
    return {"p": np.full(len(site), rows_of(site, **net).p)}


@work
def sums(site: Site, columns: Ints, centre: Floats, **net: Any) -> Reply:
    """Sums of weights, of columns less their centre, and of their products."""
    rows, w, mean, A = data_features.moments(rows_of(site, **net), columns, centre, np.ones(len(columns)))
    square = full(A) + w[:, None, None] * mean[:, :, None] * mean[:, None, :]
    return {"rows": rows, "w": w, "x": w[:, None] * mean, "xx": square}


@dataclass(frozen=True)
class Columns:
    """Columns that vary, in standard units, in which a value counts as ``(x - centre) * unit``.

    ``columns`` (q,) are the table's; the number of its columns stands for the response. ``covariance`` (q, q) is of all
    rows.
    """

    columns: Ints
    centre: Floats
    unit: Floats
    covariance: Floats

    @property
    def message(self) -> dict[str, Any]:
        """What clients are told."""
        return {"columns": self.columns, "centre": self.centre, "unit": self.unit}


def _moments(fed: Federation, response: bool, net: Mapping[str, Any]) -> tuple[Floats, Sums]:
    """Means (q,) of all columns over all rows, and :func:`sums` around them (three exchanges)."""
    p = int(require_all_replies(fed.total(widths, **net))["p"]) // len(fed.clients)
    columns = np.arange(p + response)
    first = require_all_replies(fed.total(sums, columns=columns, centre=np.zeros(len(columns)), **net))
    if not float(first["w"]) > 0.0:
        raise CoterieError("No row of any client weighs anything: there is nothing to compare clients by.")
    centre = np.asarray(first["x"] / float(first["w"]))
    return centre, require_all_replies(fed.total(sums, columns=columns, centre=centre, **net))


def agree(fed: Federation, response: bool = False, net: Mapping[str, Any] = MappingProxyType({})) -> Columns:
    """Columns that vary over all rows, and their units."""
    centre, s = _moments(fed, response, net)
    mean = s["x"] / float(s["w"])
    covariance = s["xx"] / float(s["w"]) - np.outer(mean, mean)
    sd = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    vary = np.flatnonzero(sd > CONSTANT * np.abs(centre))
    if not len(vary):
        raise CoterieError("No column varies, so clients cannot be compared by them: use the space 'model'.")
    unit = 1.0 / sd[vary]
    covariance = covariance[np.ix_(vary, vary)] * np.outer(unit, unit)
    return Columns(vary, (centre + mean)[vary], unit, covariance)


# -- data


@work
def radii(site: Site, columns: Ints, centre: Floats, unit: Floats) -> Reply:
    """Median squared distances to the centre, for a mean over rows."""
    o = rows_of(site)
    rows = data_features.moments(o, columns[:0], centre[:0], unit[:0])[0]
    return {"rows": rows, "square": rows * data_features.radii(o, columns, centre, unit)}


@work
def embed(site: Site, columns: Ints, centre: Floats, unit: Floats, seed: int, pairs: int, width: float) -> Reply:
    """Mean random features; every client draws the same frequencies."""
    omega = data_features.frequencies(seed, pairs, len(columns), width)
    weight = data_features.moments(rows_of(site), columns[:0], centre[:0], unit[:0])[1]
    return {"z": data_features.features(rows_of(site), columns, centre, unit, omega), "w": weight}


def data_points(
    fed: Federation, features: int = 256, response: bool = True, width: float | None = None, seed: int = 0
) -> Floats:
    """Mean embeddings (n, features), clients in the order of ``fed.clients``; those without rows get the mean of all.

    Features are a cosine and a sine of each frequency; the error of an MMD^2 is about ``1 / sqrt(features)``.
    ``response``: compare the joint distribution of columns and response, else of the columns alone. The kernel is
    ``exp(-|x - x'|^2 / (2 width^2))`` in standard units; by default ``width^2`` is twice the mean of the clients'
    median squared distances to the mean of all rows: about the median squared distance of two rows, without a client
    seeing another's. The embedding of a single row tells that row: a client with one row must trust who draws the
    network.
    """
    scale = agree(fed, response)
    if width is None:
        s = require_all_replies(fed.total(radii, **scale.message))
        width = float(np.sqrt(2.0 * s["square"] / s["rows"]))
        width = width if width > 0.0 else float(np.sqrt(2.0 * len(scale.columns)))
    replies = require_all_replies(fed.ask(embed, **scale.message, seed=seed, pairs=features // 2, width=width))
    z, w = np.array(replies["z"]), replies["w"]
    z[w == 0.0] = w @ z / w.sum()
    return z


# -- features

FEATURE_DISTANCES = ("log-euclidean", "frobenius", "bures", "mean")
FLAT = 1e-9  # eigenvalues, relative to the largest, that count as 0
BLOCK = 1 << 20  # numbers held at once


@work
def scatter(site: Site, columns: Ints, centre: Floats, unit: Floats, **net: Any) -> Reply:
    """A client's degrees of freedom, scatter of columns around its own mean (rows' weights of mean 1), and mean."""
    rows, w, mean, A = data_features.moments(rows_of(site, **net), columns, centre, unit)
    A *= (rows / np.where(w > 0.0, w, 1.0))[:, None]
    return {"free": np.maximum(rows - 1.0, 0.0), "A": A, "mean": mean}


@dataclass(frozen=True)
class Gaussians:
    """Means (n, q), 0 without rows, and shrunk covariances S (n, r, r) in directions that vary, standardised."""

    mean: Floats
    S: Floats

    def points(self, distance: str = "log-euclidean", means: bool = False) -> Floats:
        """Embeddings (n, P) whose Euclidean distances are those of covariances, or close to them.

        Distances are of matrix logarithms (Arsigny et al. 2007, Geometric means in a novel vector space structure on
        symmetric positive-definite matrices), of the matrices, or Bures-Wasserstein (Bhatia, Jain, Lim 2019). No
        embedding has the latter's: square roots of matrices are used, whose distance lies between it and sqrt(2) times
        it, so that they find candidates for :meth:`bures`. "mean" compares means of columns alone; ``means`` compares
        them too (with "bures": 2-Wasserstein distances of Gaussians).
        """
        if distance == "mean":
            return self.mean
        if not self.S.shape[-1]:
            raise CoterieError("No column varies within any client, so there is no covariance: use distance 'mean'.")
        embedded = _triangle(self.S if distance == "frobenius" else self._function(distance))
        return np.concatenate([embedded, self.mean], axis=1) if means else embedded

    def _function(self, distance: str) -> Floats:
        values, vectors = np.linalg.eigh(self.S)
        if distance == "log-euclidean":
            singular = np.flatnonzero(values[:, 0] <= 1e-15 * values[:, -1])
            if len(singular):
                which = f"The covariances of clients {listed(singular)} are singular"
                raise CoterieError(f"{which} and have no logarithm: give a greater prior, or leave it out.")
        of = np.log(values) if distance == "log-euclidean" else np.sqrt(np.maximum(values, 0.0))
        return np.asarray((vectors * of[:, None, :]) @ vectors.transpose(0, 2, 1))

    def bures(self, means: bool = False) -> BuresDistance:
        """Bures-Wasserstein distances, exactly."""
        return BuresDistance(self._function("bures"), self.mean if means else self.mean[:, :0])


@dataclass(frozen=True)
class BuresDistance:
    """``d_ij^2 = |mean_i - mean_j|^2 + tr S_i + tr S_j - 2 tr (S_i^1/2 S_j S_i^1/2)^1/2``, from roots (n, r, r)."""

    root: Floats
    mean: Floats

    def __call__(self, i: Ints, j: Ints) -> Floats:
        """Distances of pairs, (M,)."""
        trace = np.einsum("nab,nab->n", self.root, self.root)
        out, step = np.empty(len(i)), max(1, BLOCK // self.root[0].size)
        for at in range(0, len(i), step):
            a, b = i[at : at + step], j[at : at + step]
            nuclear = np.linalg.svd(self.root[a] @ self.root[b], compute_uv=False).sum(axis=1)
            square = trace[a] + trace[b] - 2.0 * nuclear + ((self.mean[a] - self.mean[b]) ** 2).sum(axis=1)
            out[at : at + step] = np.sqrt(np.maximum(square, 0.0))
        return out


def gaussians(
    fed: Federation,
    prior: float | None = None,
    response: bool = False,
    net: Mapping[str, Any] = MappingProxyType({}),
) -> Gaussians:
    """Every client's mean and covariance, clients in the order of ``fed.clients`` (four exchanges).

    ``prior`` rows of S are added, by default as many as columns, plus 1; ``response`` counts the response as a column.
    Of a ``net`` (``w`` and its ``personal`` layers) columns are the features before these layers.
    """
    scale = agree(fed, response, net)
    own = require_all_replies(fed.ask(scatter, **scale.message, **net))
    prior = len(scale.columns) + 1.0 if prior is None else prior
    return Gaussians(np.array(own["mean"]), covariances(own["A"], own["free"], prior))


def covariances(A: Floats, free: Floats, prior: float) -> Floats:
    """Shrunk covariances (n, r, r) from scatters A (n, P), packed, of ``free`` degrees of freedom (n,)."""
    pooled = full(A.sum(axis=0)) / max(free.sum(), 1.0)
    values, vectors = np.linalg.eigh(pooled)
    kept = values > FLAT * max(float(values[-1]), FLAT)  # columns in standard units
    basis, pooled = vectors[:, kept], np.diag(values[kept])
    own = basis.T @ full(A) @ basis + prior * pooled
    total = (free + prior)[:, None, None]
    return np.asarray(np.where(total > 0.0, own / np.where(total > 0.0, total, 1.0), pooled))


def _triangle(S: Floats) -> Floats:
    """Symmetric matrices as vectors (n, P) whose distances are Frobenius'."""
    rows, columns = np.tril_indices(S.shape[-1])
    return np.asarray(S[:, rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0)))


# -- models

LARGEST = 1e300  # of predicted means: a model far out still has distances that can be compared
MODEL_DISTANCES = ("coefficients", "predictions")


@work
def own_models(site: Site, at: Floats, R: Floats, prior: float, probes: Floats | None = None) -> Reply:
    """Every client's own model, in the metric, or what it predicts for the probes."""
    o, p, m = rows_of(site), len(at), len(site)
    nobody = np.zeros(m, dtype=np.int64)
    L = np.ascontiguousarray(R[None] / np.sqrt(prior))
    u = o.modes(np.ones(p), L, nobody, np.arange(p), at[None], nobody, np.zeros((m, p)))[3]
    u = np.asarray(u / np.sqrt(prior))
    return {"u": u} if probes is None else {"f": predict(o.family, at + u @ R.T, probes)}


def predict(family: Family, theta: Floats, probes: Floats) -> Floats:
    """Means (n, M) that models theta (n, d) predict for probes (M, d)."""
    return np.asarray(np.minimum(family.mean(np.asarray(theta @ probes.T)), LARGEST))


def model_points(
    fed: Federation,
    problem: GroupedProblem,
    distance: str = "coefficients",
    prior: float | None = None,
    probes: int | Floats = 128,
    models: Floats | None = None,
    seed: int = 0,
) -> Floats:
    """Clients' models (n, q), in order: coefficients in the metric, or predicted means over the root of their number.

    ``prior`` rows of mean curvature hold a client at the pooled model; by default as many as coefficients. Probes (M,
    p), at which models predict, are given or drawn by :func:`draw_probes`. ``models`` (n, d) were made elsewhere.
    """
    _, metric = around_pooled(fed, problem)
    if models is not None and models.shape[1] != len(metric.at):
        raise CoterieError(f"models need {len(metric.at)} columns, as the formula has, not {models.shape[1]}.")
    prior = float(len(metric.at)) if prior is None else prior
    message: dict[str, Any] = {"at": metric.at, "R": metric.R, "prior": prior}
    if distance == "coefficients":
        own = metric.u(models) if models is not None else require_all_replies(fed.ask(own_models, **message))["u"]
        return np.array(own)
    shared = draw_probes(fed, int(probes), seed) if np.ndim(probes) == 0 else np.asarray(probes)
    if shared.shape[1:] != metric.at.shape:
        raise CoterieError(f"Probes need {len(metric.at)} columns, as the models have, not shape {shared.shape}.")
    if models is None:
        means = np.asarray(require_all_replies(fed.ask(own_models, **message, probes=shared))["f"])
    else:
        means = predict(problem.family, models, shared)
    return np.asarray(means / np.sqrt(len(shared)))


def draw_probes(fed: Federation, probes: int, seed: int = 0) -> Floats:
    """Probes (M, p) from the normal distribution with the mean and covariance of all rows: nobody's row is one."""
    centre, s = _moments(fed, False, {})
    covariance = s["xx"] / float(s["w"])
    sd = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / np.outer(np.where(sd > 0.0, sd, 1.0), np.where(sd > 0.0, sd, 1.0)))
    start = keyed_random.starts(seed, "probes", np.arange(probes, dtype=np.uint64))
    z = keyed_random.normal(start, np.zeros(probes, dtype=np.int64), len(centre))
    return np.asarray(centre + sd * ((z * np.sqrt(np.maximum(values, 0.0))) @ vectors.T))
