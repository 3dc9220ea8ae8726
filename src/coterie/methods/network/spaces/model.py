"""Model space: clients as local models, compared by coefficients or by what they predict for shared probes.

A client's own model minimises its loss plus ``prior / 2 |u|^2``, where u is its distance from the pooled model in the
metric in which the mean curvature of all rows is one: as if ``prior`` mean rows spoke for the pooled model. So clients
of few rows stay finite, and squared distances of u are, to second order, twice differences in mean loss.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.families import Family
from coterie.federation import Federation, Site, work
from coterie.methods.collaboration.metric import around_pooled
from coterie.methods.estimates import GroupedProblem
from coterie.methods.network.spaces.data import Reply, rows_of, sums, widths
from coterie.methods.replies import require_all_replies
from coterie.numerics import keyed_random
from coterie.numerics.kernels import Floats

LARGEST = 1e300
"""Of predicted means: a model far out still has distances that can be compared."""
DISTANCES = ("coefficients", "predictions")


def _own(site: Site, at: Floats, R: Floats, prior: float) -> Floats:
    """Every client's u, (m, p)."""
    o, p, m = rows_of(site), len(at), len(site)
    nobody = np.zeros(m, dtype=np.int64)
    L = np.ascontiguousarray(R[None] / np.sqrt(prior))
    u = o.modes(np.ones(p), L, nobody, np.arange(p), at[None], nobody, np.zeros((m, p)))[3]
    return np.asarray(u / np.sqrt(prior))


@work
def coefficients(site: Site, at: Floats, R: Floats, prior: float) -> Reply:
    """Every client's own model, in the metric."""
    return {"u": _own(site, at, R, prior)}


@work
def predictions(site: Site, at: Floats, R: Floats, prior: float, probes: Floats) -> Reply:
    """What every client's own model predicts for the probes."""
    return {"f": predict(rows_of(site).family, at + _own(site, at, R, prior) @ R.T, probes)}


def predict(family: Family, theta: Floats, probes: Floats) -> Floats:
    """Means (n, M) that models theta (n, d) predict for probes (M, d)."""
    return np.asarray(np.minimum(family.mean(np.asarray(theta @ probes.T)), LARGEST))


def points(
    fed: Federation,
    problem: GroupedProblem,
    distance: str = "coefficients",
    prior: float | None = None,
    probes: int | Floats = 128,
    models: Floats | None = None,
    seed: int = 0,
) -> Floats:
    """Clients' models (n, q), in the order of ``fed.clients``.

    Parameters
    ----------
    distance : {"coefficients", "predictions"}
        Coefficients in the metric, or predicted means for the probes over ``sqrt(probes)``.
    prior : number, optional
        Rows of mean curvature that hold a client at the pooled model; by default as many as coefficients.
    probes : int or (M, d), default 128
        Their number, drawn by :func:`draw`; or the probes themselves.
    models : (n, d), optional
        Local models that were made elsewhere.
    """
    _, metric = around_pooled(fed, problem)
    if models is not None and models.shape[1] != len(metric.at):
        raise CoterieError(f"models need {len(metric.at)} columns, as the formula has, not {models.shape[1]}.")
    prior = float(len(metric.at)) if prior is None else prior
    message: dict[str, Any] = {"at": metric.at, "R": metric.R, "prior": prior}
    if distance == "coefficients":
        return (
            np.array(require_all_replies(fed.ask(coefficients, **message))["u"]) if models is None else metric.u(models)
        )
    shared = draw(fed, int(probes), seed) if np.ndim(probes) == 0 else np.asarray(probes)
    if shared.shape[1:] != metric.at.shape:
        raise CoterieError(f"Probes need {len(metric.at)} columns, as the models have, not shape {shared.shape}.")
    if models is None:
        found = np.asarray(require_all_replies(fed.ask(predictions, **message, probes=shared))["f"])
    else:
        found = predict(problem.family, models, shared)
    return np.asarray(found / np.sqrt(len(shared)))


def draw(fed: Federation, probes: int, seed: int = 0) -> Floats:
    """Probes (M, p) from the normal distribution with the mean and covariance of all rows: nobody's row is one."""
    p = int(require_all_replies(fed.total(widths))["p"]) // len(fed.clients)
    first = require_all_replies(fed.total(sums, columns=np.arange(p), centre=np.zeros(p)))
    centre = np.asarray(first["x"] / float(first["w"]))
    s = require_all_replies(fed.total(sums, columns=np.arange(p), centre=centre))
    covariance = s["xx"] / float(s["w"])
    sd = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / np.outer(np.where(sd > 0.0, sd, 1.0), np.where(sd > 0.0, sd, 1.0)))
    start = keyed_random.starts(seed, "probes", np.arange(probes, dtype=np.uint64))
    z = keyed_random.normal(start, np.zeros(probes, dtype=np.int64), p)
    return np.asarray(centre + sd * ((z * np.sqrt(np.maximum(values, 0.0))) @ vectors.T))
