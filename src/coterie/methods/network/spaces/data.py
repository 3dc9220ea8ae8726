"""Data space: clients as mean embeddings of their rows in the space of a kernel.

The squared distance of two embeddings is the maximum mean discrepancy (MMD^2) of the clients' rows [1]_ under a
Gaussian kernel, here with random Fourier features [2]_: every client sends a few hundred numbers, means over its rows.
It is the estimate with a bias: each client of n rows adds ``(1 - mean kernel of two of its rows) / n``, so that clients
of few rows are far from all others.

References
----------
.. [1] Gretton et al. (2012), A kernel two-sample test, JMLR.
.. [2] Rahimi, Recht (2007), Random features for large-scale kernel machines, NIPS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, Site, work
from coterie.methods.replies import require_all_replies
from coterie.numerics.kernels import Floats, Ints, full
from coterie.objectives import data_features
from coterie.objectives.glm import GLM


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


def points(
    fed: Federation, features: int = 256, response: bool = True, width: float | None = None, seed: int = 0
) -> Floats:
    """Mean embeddings (n, features), clients in the order of ``fed.clients``; those without rows get the mean of all.

    Parameters
    ----------
    features : int, default 256
        An even number: a cosine and a sine of each frequency. The error of an MMD^2 is about ``1 / sqrt(features)``.
    response : bool, default True
        Compare the joint distribution of columns and response; otherwise of the columns alone.
    width : number, optional
        The kernel is ``exp(-|x - x'|^2 / (2 width^2))`` in standard units. By default ``width^2`` is twice the mean of
        the clients' median squared distances to the mean of all rows: about the median squared distance of two rows,
        without a client seeing another's.

    Notes
    -----
    The embedding of a single row tells that row. A client with one row must trust who draws the network.
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


Reply = dict[str, Any]
CONSTANT = 1e-9
"""Standard deviations, relative to the mean, that rounding cannot tell from 0."""


def rows_of(site: Site) -> GLM:
    """The site's rows, of any family; a CoterieError where it holds no table."""
    if not isinstance(site.objective, GLM):
        raise CoterieError("Clients without a table cannot be compared by columns: give their models, or covariates.")
    return site.objective


@work
def widths(site: Site) -> Reply:
    """How many columns there are."""
    return {"p": np.full(len(site), rows_of(site).p)}


@work
def sums(site: Site, columns: Ints, centre: Floats) -> Reply:
    """Sums of weights, of columns less their centre, and of their products."""
    rows, w, mean, A = data_features.moments(rows_of(site), columns, centre, np.ones(len(columns)))
    square = full(A) + w[:, None, None] * mean[:, :, None] * mean[:, None, :]
    return {"rows": rows, "w": w, "x": w[:, None] * mean, "xx": square}


@dataclass(frozen=True)
class Columns:
    """Columns that vary, in standard units.

    Attributes
    ----------
    columns : (q,) int64
        Of the table; the number of its columns stands for the response.
    centre, unit : (q,)
        A value counts as ``(x - centre) * unit``, of mean 0 and variance 1 over all rows.
    covariance : (q, q)
        Of all rows, in standard units.
    """

    columns: Ints
    centre: Floats
    unit: Floats
    covariance: Floats

    @property
    def message(self) -> dict[str, Any]:
        """What clients are told."""
        return {"columns": self.columns, "centre": self.centre, "unit": self.unit}


def agree(fed: Federation, response: bool = False) -> Columns:
    """Columns that vary over all rows, and their units (three exchanges)."""
    p = int(require_all_replies(fed.total(widths))["p"]) // len(fed.clients)
    columns = np.arange(p + response)
    first = require_all_replies(fed.total(sums, columns=columns, centre=np.zeros(len(columns))))
    if not float(first["w"]) > 0.0:
        raise CoterieError("No row of any client weighs anything: there is nothing to compare clients by.")
    centre = np.asarray(first["x"] / float(first["w"]))
    s = require_all_replies(fed.total(sums, columns=columns, centre=centre))
    mean = s["x"] / float(s["w"])
    covariance = s["xx"] / float(s["w"]) - np.outer(mean, mean)
    sd = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    vary = np.flatnonzero(sd > CONSTANT * np.abs(centre))
    if not len(vary):
        raise CoterieError("No column varies, so clients cannot be compared by them: use the space 'model'.")
    unit = 1.0 / sd[vary]
    covariance = covariance[np.ix_(vary, vary)] * np.outer(unit, unit)
    return Columns(columns[vary], (centre + mean)[vary], unit, covariance)
