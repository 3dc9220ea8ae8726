"""Variances and correlations of a fit as a table, with intervals that come from what is known of their uncertainty."""

from __future__ import annotations

from math import inf, nan
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from coterie.families import family_named
from coterie.lazy_modules import special
from coterie.methods.tree.covariance_structure import at_means, means_frame
from coterie.methods.tree.variance_posterior import degrees_of_freedom
from coterie.numerics.arrays import Floats, Ints, full
from coterie.results.model import Model, Nodes

Row = tuple[Any, Any, str, str, float, float, float, float]
_COLUMNS = ["level", "cluster", "term", "term2", "sd", "cov", "lower", "upper"]
"""What a row of the table of variances has."""


def variances(m: Model, level: float = 0.95) -> pd.DataFrame:
    """Variances and correlations of every level, with intervals of their square roots and of the correlations."""
    rows: list[Row] = []
    own, u = len(m.D_client) > 1, m.uncertainty
    unsure: Unsure | None = None
    shared = np.setdiff1d(np.arange(len(m.terms)), m.personal)
    if m.has_variances:
        for k, D in enumerate(m.D_client):
            members = m.clusters == k if own else slice(None)
            posterior = m.client_cov[members]
            if u is not None:
                extra = u.more[0][min(k, len(u.more[0]) - 1)]
                unsure = _unsure(extra, u.levels[0], posterior, len(m.labels[members]), shared)
            straying = m.info.get("straying", m.personal)
            cluster = m.levels[0].labels[k] if own else ""
            rows += _components(("client", cluster), D, m, straying, unsure, level)
        each = zip(Nodes(m).names[1:], Nodes(m).levels, m.D_levels, strict=False)
        for k, (name, nodes, D) in enumerate(each, start=1):
            if u is not None:
                extra = u.more[k][0] if len(u.more[k]) else u.more[k]
                unsure = _unsure(extra, u.levels[k], m.node_cov[k - 1], len(nodes.labels), shared)
            if len(nodes.labels) > 1:
                rows += _components((name, ""), D, m, m.personal, unsure, level)
    if family_named(m.family).has_dispersion:
        df = nan if "rows" not in m.info else m.info["rows"] - float(len(m.terms))
        if u is not None:
            df = 4.0 + 2.0 / u.residual if u.residual > 0.0 else inf
        rows.append(("residual", "", "", "", m.sigma2**0.5, m.sigma2, *_sd_interval(m.sigma2, df, level)))
    if (dispersion := m.scattering.dispersion) is not None:
        rows.append(("dispersion", "", "", "", nan, dispersion, nan, nan))
    frame = pd.DataFrame(rows, columns=_COLUMNS).astype(dict.fromkeys(_COLUMNS[4:], np.float64))
    return frame if own else frame.drop(columns="cluster")


class Unsure(NamedTuple):
    """What is known of how uncertain a level's covariance is, in the units of the table."""

    more: Floats  # (p, p): by how much it is larger in the mean
    directions: Floats  # (n, p, p)
    posterior: Floats  # (p, p): mean covariance of its groups' own coefficients, given the shared ones
    df: float  # of as many groups


def _unsure(more: Floats, directions: Floats, posterior: Floats, groups: int, shared: Ints) -> Unsure:
    """That of one covariance of a level, of packed posterior covariances of its groups where they are known.

    Shared coefficients are the same for all groups, so what is not known of them makes no group look different.
    """
    own = np.zeros(directions.shape[-2:])
    if len(posterior):
        own = full(posterior.mean(axis=0))
        size = np.sqrt(np.diag(own))
        size = np.where(size > 0.0, size, 1.0)
        seen = (own / size[:, None] / size)[:, shared]
        own = own - size[:, None] * (seen @ np.linalg.pinv(seen[shared], hermitian=True) @ seen.T) * size
    return Unsure(more if more.size else np.zeros_like(own), directions, own, groups - 1.0)


def _sd_interval(variance: float, df: float, level: float) -> tuple[float, float]:
    """Of a standard deviation whose variance is chi-squared over its degrees of freedom."""
    if not 0.0 < df < inf or not variance > 0.0:
        return (variance**0.5, variance**0.5) if df == inf else (nan, nan)
    ends = [(df * variance / float(special.chdtri(df, tail))) ** 0.5 for tail in (0.5 - level / 2.0, 0.5 + level / 2.0)]
    return ends[0], ends[1]


def _components(
    of: tuple[str, Any], D: Floats, m: Model, columns: Any, unsure: Unsure | None, probability: float
) -> list[Row]:
    """Rows ``of`` a level and cluster for some columns' covariances: variances, then pairs where there are any."""
    D = at_means(D, m.info)
    sd = np.sqrt(np.maximum(np.diag(D), 0.0))
    q = [int(j) for j in columns]
    none = np.full_like(D, nan)
    extra, G, own, df = (none, none[None], none, inf) if unsure is None else unsure
    F = means_frame(m.info, len(D))
    extra, G, own = F @ extra @ F.T, F @ G @ F.T, F @ own @ F.T
    rows: list[Row] = []
    for j in q:
        mean, square = D[j, j] + max(extra[j, j], 0.0), np.square(G[:, j, j]).sum()
        ends = _ends(float(D[j, j]), float(mean), float(square), float(own[j, j]), df, probability)
        rows.append((*of, m.terms[j], "", float(sd[j]), float(D[j, j]), *ends))
    block = D[np.ix_(q, q)]
    size = np.outer(sd[q], sd[q])
    if np.any((size > 0.0) & (np.abs(np.tril(block, -1)) > 1e-7 * size)):  # less is rounding
        for b, j in enumerate(q):
            for i in q[:b]:
                if not sd[i] * sd[j] > 0:
                    continue  # there is no correlation with what does not vary
                r = float(D[i, j] / (sd[i] * sd[j]))
                slope = G[:, i, j] / (sd[i] * sd[j]) - 0.5 * r * (G[:, i, i] / D[i, i] + G[:, j, j] / D[j, j])
                ends = _fisher(r, float(np.linalg.norm(slope)), probability)
                rows.append((*of, m.terms[i], m.terms[j], r, float(D[i, j]), *ends))
    return rows


def _ends(
    variance: float, mean: float, square: float, posterior: float, groups: float, level: float
) -> tuple[float, float]:
    """Of a standard deviation: of a variance of zero the upper end alone is above it, of a gamma distribution.

    Groups are seen through the noise of their rows, of which their posterior variance tells. With it, a variance is
    chi-squared, with no more degrees of freedom than groups have; without it, the lower end would be too high.
    """
    if not mean > 0.0 or not square > 0.0:
        return nan, nan
    if not variance > 0.0:
        return 0.0, float(special.gammaincinv(mean**2 / square, level) * square / mean) ** 0.5
    share = min(posterior / mean, 0.99)
    noise = mean * share / (1.0 - share)
    df = float(degrees_of_freedom(square / (mean + noise) ** 2))
    seen = (mean + noise) * (df - 2.0) / df
    if df > groups:
        df, seen = groups, variance + noise
    lower, upper = _sd_interval(seen, df, level)
    return max(lower**2 - noise, 0.0) ** 0.5, max(upper**2 - noise, 0.0) ** 0.5


def _fisher(r: float, sd: float, level: float) -> tuple[float, float]:
    """Of a correlation with this standard deviation."""
    if not abs(r) < 1.0 - 1e-9 or not np.isfinite(sd):
        return nan, nan
    half = NormalDist().inv_cdf(0.5 + level / 2.0) * sd / (1.0 - r**2)
    return float(np.tanh(np.arctanh(r) - half)), float(np.tanh(np.arctanh(r) + half))
