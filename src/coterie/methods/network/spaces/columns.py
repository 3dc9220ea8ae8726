"""Which columns clients are compared by, and their standard units: agreed on by sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, Site, work
from coterie.methods.replies import require_all_replies
from coterie.numerics.kernels import Floats, Ints, full
from coterie.objectives import embedding
from coterie.objectives.glm import GLM

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
    rows, w, mean, A = embedding.moments(rows_of(site), columns, centre, np.ones(len(columns)))
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
