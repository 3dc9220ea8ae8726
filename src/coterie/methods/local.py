"""Every client alone, nothing shared: the baseline that a client can always have at home."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.federation import Federation, Site, require_all_replies, work
from coterie.methods import pooled
from coterie.methods.pooled import residual_variance
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem, collect
from coterie.methods.tree.client_work import Reply
from coterie.methods.tree.penalised_tree import Setup, prepare, solve
from coterie.numerics.arrays import Bools, Floats, full, pack
from coterie.objectives.row_kernels import owned_rows


@work
def least_squares(site: Site, table: Floats, origin: Floats) -> Reply:
    """Least squares of minimum norm (in the table's units) from a client's own sums."""
    theta, inverse, rank = minimum_norm(site.state["A"], site.state["b"], table, origin)
    fit = 2.0 * np.einsum("mi,mi->m", site.state["b"], theta) - np.einsum(
        "mi,mij,mj->m", theta, full(site.state["A"]), theta
    )
    site.state["theta"], site.state["cov"] = theta, pack(inverse)
    sse, light = np.maximum(site.state["c"] - fit, 0.0), light_residuals(site, rank)
    if light.any():
        sse, rank = np.where(light, 0.0, sse), np.where(light, site.objective.moments()["rows"], rank)
    return {"sse": sse, "rank": rank}


LIGHT = 1e-3
"""Mean weight, of 1 in all rows, below which rows tell nothing of the noise."""


def light_residuals(site: Site, fitted: Floats) -> Bools:
    """Clients (m,) whose residuals may lie in rows of nearly no weight: more rows have it than are ``fitted`` (m,).

    Of a client that has no more rows than are fitted, all have it.
    """
    o = site.objective
    who, rows = owned_rows(o.starts, o.stops)
    who, w = who[o.weights[rows] > 0.0], o.weights[rows][o.weights[rows] > 0.0]
    if w.min(initial=1.0) >= LIGHT:
        return np.zeros(len(o), dtype=bool)
    order, n = np.lexsort((w, who)), np.bincount(who, minlength=len(o))
    k = np.where(n > fitted, n - fitted, n)
    least = np.arange(len(w)) - (np.cumsum(n) - n)[who[order]] < k[who[order]]
    sums = np.bincount(who[order], w[order] * least, minlength=len(o))
    return np.asarray(sums < LIGHT * k)


@work
def reveal(site: Site) -> Reply:
    """A client's parameters, for an owner of all the data who wants them in one table."""
    return {"theta": site.state["theta"], "cov": site.state["cov"]}


def minimum_norm(A: Floats, b: Floats, table: Floats, origin: Floats) -> tuple[Floats, Floats, Floats]:
    """Solve ``A theta = b`` for many clients, A (m, P) packed and b (m, p).

    Where A is singular, the solution whose ``origin + table @ theta`` is shortest. Returns theta (m, p), a generalised
    inverse (m, p, p) and the rank (m,).
    """
    square = np.einsum("mii->mi", full(A))
    size = np.sqrt(np.where(square > 0.0, square, 1.0))  # a column may be zero in all rows of a client
    values, vectors = np.linalg.eigh(full(A) / (size[:, :, None] * size[:, None, :]))
    kept = values > 1e-10 * len(table)
    inverse = np.einsum("mik,mk,mjk->mij", vectors, np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0), vectors)
    inverse /= size[:, :, None] * size[:, None, :]
    theta = np.einsum("mij,mj->mi", inverse, b)
    singular = np.flatnonzero(~kept.all(axis=1))
    if len(singular):
        null = np.where(kept[singular, None, :], 0.0, vectors[singular]) / size[singular, :, None]
        far = origin + theta[singular] @ table.T
        theta[singular] -= np.einsum("mij,mjk,mk->mi", null, np.linalg.pinv(table @ null), far)
    return theta, inverse, kept.sum(axis=1).astype(np.float64)


def weak(setup: Setup) -> Floats:
    """The factor (1, p, p) of the family's prior for a model at the means of the table's columns."""
    return np.asarray(setup.family.prior_sd * np.linalg.inv(setup.standard)[None], dtype=np.float64)


def prior_mean(setup: Setup, everyone: Estimates) -> Floats:
    """What the prior is around: 0, or where outcomes may be any number the model of all."""
    return everyone.root / setup.unit * setup.family.any_number


def fit(fed: Federation, problem: GroupedProblem) -> Estimates:
    """Least squares, or likelihood held by a weak prior, at every client; clients never seen get the pooled model."""
    everyone = pooled.fit(fed, problem)
    p = len(everyone.root)
    setup = prepare(fed, problem.tree, problem.family, np.arange(p), problem.intercept, problem.basis)
    if problem.family.is_quadratic:
        sums = require_all_replies(fed.total(least_squares, table=setup.table, origin=setup.origin))
        own = require_all_replies(fed.ask(reveal))
        sigma2, info = residual_variance(float(sums["sse"]), setup.rows - float(sums["rank"]), everyone.sigma2)
        client = setup.raw(own["theta"])
        cov = own["cov"] * pack(np.outer(setup.unit, setup.unit)) * sigma2
    else:
        L = [weak(setup)] + [np.zeros((1, p, p))] * len(problem.tree.parents)
        s = solve(fed, setup, L, root=prior_mean(setup, everyone))
        alone, sigma2 = collect(fed, setup, s, L, 1.0, C=np.zeros((p, p))), 1.0
        info = {}
        client, cov = alone.client, alone.client_cov
    return replace(everyone, client=client, client_cov=cov, sigma2=sigma2, log_likelihood=None, info=info)
