"""Does the model fit? Residuals that are normal where it does, what they say, and what each client moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from coterie.data.clients import Clients
from coterie.data.prepare_table import prepare
from coterie.errors import CoterieError, listed, plural
from coterie.families import family_named, names_of
from coterie.lazy_modules import special
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Floats, full
from coterie.relations.clusters import ClusterTree
from coterie.results.model import Nodes
from coterie.runs.run_table_method import objective

KINDS = ("quantile", "response")
POINTS = 101  # of a QQ plot
COLUMNS, ENOUGH = 50, 50_000  # columns, and rows evenly spread, that are looked at for a bend
RARE = 0.005  # the probability of a finding where the model fits, over all columns or clients together


def clients_of(result: Any, table: Any = None) -> Clients:
    """The rows of a fit: those that it keeps, or those of its table; a CoterieError where there are none."""
    if table is None:
        if result.fitting is None:
            raise CoterieError(
                "There are no rows beside this result, since it was loaded or its rows stay at their sites: give the "
                "table that was fitted (table=df)."
            )
        found: Clients = result.fitting.clients
        return found
    said, m = result.settings, result.model
    options = {"family": m.family, "offset": result.offset, "weights": result.weights}
    options |= {"missing": said.get("missing", "error"), "design": result.design}
    clients, _ = prepare(table, result.formula, m.client_name, said.get("cluster", ()), **options)
    if not np.array_equal(clients.labels, m.labels):
        raise CoterieError("The table has other clients than the fit: give the one that was fitted.")
    return clients


def linear_predictor(result: Any, clients: Clients, theta: Floats) -> Floats:
    """Of every row (n,), at its client's coefficients theta (m, p)."""
    return np.asarray(np.einsum("np,np->n", clients.X, theta[clients.codes]) + clients.offset)


def residual_sd(result: Any, clients: Clients) -> Floats:
    """Of every row (n,): the residual standard deviation at its weight; the root of a dispersion, which has none."""
    m = result.model
    if not m.scattering.has_dispersion:
        return np.full(len(clients.y), np.sqrt(m.sigma2))
    variance = np.full(len(clients.y), m.sigma2) if m.client_sigma2 is None else m.client_sigma2[clients.codes]
    return np.sqrt(variance / np.where(clients.weights > 0.0, clients.weights, 1.0))


def share_at_most(result: Any, clients: Clients, y: Floats, eta: Floats) -> Floats:
    """The probability (n,) that outcomes are at most y, at linear predictors."""
    family = result.model.scattering
    if family.has_dispersion:
        return np.asarray(special.ndtr((y - eta) / residual_sd(result, clients)))
    if family.cdf is not None:
        trials = np.where(clients.weights > 0.0, clients.weights, 1.0) if clients.trials else np.ones(len(y))
        return np.asarray(family.at_most(y * trials, eta, trials))
    return np.asarray(np.where(y < 0.0, 0.0, special.pdtr(np.maximum(y, 0.0), family.mean(eta))))


def row_residuals(result: Any, clients: Clients, eta: Floats, kind: str, seed: int) -> Floats:
    """Of every row (n,), sorted as the clients' rows are; NaN for rows without weight."""
    family = family_named(result.model.family)
    if kind == "response":
        out = clients.y - family.mean(eta)
    else:
        high = share_at_most(result, clients, clients.y, eta)
        if family.counted:
            step = 1.0 / np.where(clients.weights > 0.0, clients.weights, 1.0) if clients.trials else 1.0
            low = share_at_most(result, clients, clients.y - step, eta)
            u = keyed_random.uniform_rows(seed, "residuals", clients.ids, 0, clients.counts)
            high = low + (high - low) * u
        out = special.ndtri(np.clip(high, 1e-16, 1.0 - 1e-16))
    return np.where(clients.weights > 0.0, out, np.nan)


def residuals(result: Any, kind: str, seed: int, table: Any) -> pd.Series[float]:
    """See :meth:`Inference.residuals`."""
    if kind not in KINDS:
        raise CoterieError(f"There are no residuals of the kind {kind!r}: use {' or '.join(KINDS)}.")
    clients = clients_of(result, table)
    index = np.argsort(clients.order)
    eta = linear_predictor(result, clients, result.model.client)
    values = row_residuals(result, clients, eta, kind, seed)[index]
    return pd.Series(values, index=pd.Index(clients.order[index], name="row"), name=f"{kind} residual")


def curvatures(result: Any, clients: Clients) -> tuple[Floats, Floats]:
    """Packed information (m, P) of each client's rows at its coefficients, and scores (m, p)."""
    m = result.model
    of_all = m.sigma2 if m.scattering.has_dispersion else 1.0
    sigma2 = np.full(len(clients), of_all) if m.client_sigma2 is None else m.client_sigma2
    _, score, A, _ = objective(clients, m.scattering).derivatives(np.ones(len(m.terms)), m.client)
    return A / sigma2[:, None], score / sigma2[:, None]


@np.errstate(all="ignore")  # models that diverged have no check, and are said elsewhere
def fit_check(result: Any, clients: Clients) -> dict[str, Any]:
    """What quantile residuals say: points of a QQ plot, and findings, each with a sentence; empty where none are."""
    eta = linear_predictor(result, clients, result.model.client)
    r = row_residuals(result, clients, eta, "quantile", 0)
    here = np.isfinite(r)
    if not here.sum() > max(len(result.model.terms), 8):
        return {}
    share = (np.arange(POINTS) + 0.5) / POINTS
    check = {"qq": [[float(v) for v in special.ndtri(share)], [float(v) for v in np.quantile(r[here], share)]]}
    r = np.where(here, r, 0.0)
    found = [_tails(r[here]), _dispersion(result, clients, r[here]), _zeros(result, clients, eta, here)]
    some = np.flatnonzero(here)[:: 1 + int(here.sum()) // ENOUGH]
    found += [_spread(r[some], eta[some]), _bend(clients, r[some], some), _by_client(clients, r, here)]
    return check | {"findings": [list(one) for one in found if one is not None]}


Finding = tuple[str, str, bool]
"""What was looked at, a sentence, and whether it speaks against the model."""


def _tails(r: Floats) -> Finding:
    """Residuals beyond three standard deviations, beside those of a normal distribution, and their fourth moment."""
    many, expected = int((np.abs(r) > 3.0).sum()), 0.0027 * len(r)
    square = r * r
    kurtosis = float(square @ square) / len(r) / max(float(square.mean()), 1e-150) ** 2
    bad = many > expected + 3.0 * expected**0.5 + 1.0 or kurtosis > 3.0 + 5.0 * (24.0 / len(r)) ** 0.5
    said = f"{many:,} of {len(r):,} residuals lie beyond three standard deviations, where {expected:.1f} are expected, "
    said += f"and their kurtosis is {kurtosis:.1f}, where 3 is normal"
    return "Tails", said + (": a few outcomes may sway the model, so look at them." if bad else "."), bad


def _dispersion(result: Any, clients: Clients, r: Floats) -> Finding | None:
    """How far outcomes of a family without a residual variance scatter; 0 and 1 alone do not tell."""
    m = result.model
    family = family_named(m.family)
    if family.has_dispersion or (family.two_classes and not clients.trials):
        return None
    p = len(m.terms)
    twice = np.where(np.equal(*np.tril_indices(p)), 1.0, 2.0)
    left = len(r) - float(np.einsum("mp,mp,p->", curvatures(result, clients)[0], m.client_cov, twice))
    if not left > 0.1 * len(r):
        return None
    ratio, half = float(r @ r) / left, 3.0 * (2.0 / left) ** 0.5
    said = f"Outcomes scatter {ratio:.2f} times as much as the family says, where {max(1.0 - half, 0.0):.2f} to "
    said += f"{1.0 + half:.2f} is chance"
    if ratio > 1.0 + half:
        said += ": standard errors are too small, so take a family with a dispersion"
        if family.counted and not family.two_classes and not family.scatters:
            said += f", {names_of(lambda f: f.counted and f.scatters)}"
    return "Dispersion", f"{said}.", bool(abs(ratio - 1.0) > half)


def _zeros(result: Any, clients: Clients, eta: Floats, here: Floats) -> Finding | None:
    """Counts of zero, beside those that the family expects."""
    family = family_named(result.model.family)
    if not family.counted or family.two_classes:
        return None
    none = share_at_most(result, clients, np.zeros(len(eta)), eta)[here]
    many, expected, sd = (
        int((clients.y[here] == 0.0).sum()),
        float(none.sum()),
        float((none * (1.0 - none)).sum()) ** 0.5,
    )
    bad = abs(many - expected) > 3.0 * sd + 0.5
    said = f"{plural(many, 'outcome')} {'is' if many == 1 else 'are'} zero, where {expected:,.1f} are expected"
    more = ": model whether there is anything apart from how much" if bad and many > expected else ""
    return "Zeros", f"{said}{more}.", bad


def _spread(r: Floats, eta: Floats) -> Finding | None:
    """Whether residuals scatter alike for small and large predictions."""
    slope = _correlation(np.square(r), eta)
    if slope is None:
        return None
    bad = abs(slope) > max(3.0 / len(r) ** 0.5, 0.05)
    where = f"more where predictions are {'large' if slope > 0 else 'small'}" if bad else "alike for all predictions"
    more = ": intervals are too wide for some rows and too narrow for others" if bad else ""
    return "Spread", f"Residuals scatter {where} (correlation {slope:z.2f}){more}.", bad


def _bend(clients: Clients, r: Floats, here: Any) -> Finding | None:
    """The column with whose square residuals go along most."""
    best, name, tried = 0.0, "", 0
    for j in range(min(len(clients.terms), COLUMNS)):
        x = clients.X[here, j]
        x = x - x.mean()
        if not (most := float(np.abs(x).max(initial=0.0))) > 0.0:
            continue
        x = x / most  # its square would overflow in some units
        q = np.square(x)
        size = float(q.sum())
        q = q - q.mean() - x * (float(q @ x) / size)
        tried += 1
        bend = _correlation(r, q) if float(q @ q) > 1e-8 * size**2 / len(x) else None  # two values have no bend
        if bend is not None and abs(bend) > abs(best):
            best, name = bend, clients.terms[j]
    if not name:
        return None
    bad = abs(best) > max(float(-special.ndtri(0.5 * RARE / tried)) / len(r) ** 0.5, 0.03)
    if not bad:
        return "Columns", f"Residuals do not bend with any column (largest correlation {best:z.2f}, {name}).", False
    return "Columns", f"Residuals bend with {name} (correlation {best:.2f} with its square): add a curve of it.", True


def _by_client(clients: Clients, r: Floats, here: Any) -> Finding:
    """Clients whose rows scatter more than those of others."""
    square = np.add.reduceat(np.square(r), clients.starts)
    counts = np.add.reduceat(here.astype(np.float64), clients.starts)
    common = float(square.sum() / counts.sum())
    p = special.chdtrc(np.maximum(counts, 1.0), square / (common if common > 0.0 else 1.0))
    bad = np.flatnonzero(p < RARE / len(clients))
    if not len(bad):
        return "Clients", f"No client ({clients.name}) scatters more than chance allows.", False
    some = [clients.labels[i] for i in bad[np.argsort(p[bad], kind="stable")]]
    said = f"{len(bad):,} of {plural(len(clients), 'client')} ({clients.name}) scatter{'s' * (len(bad) == 1)}"
    return "Clients", f"{said} more than others: {listed(some)}.", True


def _correlation(a: Floats, b: Floats) -> float | None:
    """Of two columns; None where one is constant."""
    a, b = a - a.mean(), b - b.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size > 1e-12 * len(a) else None


def influence(result: Any, table: Any) -> pd.DataFrame:
    """See :meth:`Inference.influence`."""
    m, clients = result.model, clients_of(result, table)
    if not m.has_variances and m.method != "pooled":
        raise CoterieError(
            f"The influence of clients is on the global coefficients of a likelihood, which '{m.method}' has not: use "
            "'hierarchical', 'single-cluster' or 'pooled'."
        )
    packed, score = curvatures(result, clients)
    A = full(packed)
    b = score + np.einsum("mij,mj->mi", A, m.client)
    nodes = Nodes(m)
    D = [m.D_client if len(m.D_client) == 1 else m.D_client[m.clusters], *(d[None] for d in m.D_levels)]
    with_all = [_fold(A, b, D[0])]  # what each node says of its parent
    sums: list[tuple[Floats, Floats]] = []
    sizes = [*ClusterTree(tuple(v.parent for v in nodes.levels)).sizes]
    for level, size in enumerate(sizes):
        total = (np.zeros((size, *A.shape[1:])), np.zeros((size, b.shape[1])))
        for to, values in zip(total, with_all[-1], strict=True):
            np.add.at(to, nodes.parents[level], values)
        sums.append(total)
        if level + 1 < len(sizes):
            with_all.append(_fold(*total, D[level + 1]))
    at, changed = np.arange(len(A)), (-with_all[0][0], -with_all[0][1])
    for level in range(len(sizes)):
        at = nodes.parents[level][at]
        left = tuple(total[at] + change for total, change in zip(sums[level], changed, strict=True))
        if level + 1 < len(sizes):
            folded = _fold(left[0], left[1], D[level + 1])
            changed = (folded[0] - with_all[level + 1][0][at], folded[1] - with_all[level + 1][1][at])
    root, b0 = sums[-1][0][0], sums[-1][1][0]
    estimate, inverse = np.linalg.solve(root, b0), np.linalg.inv(root)
    move = np.einsum("mij,mj->mi", np.linalg.pinv(left[0], hermitian=True), left[1]) - estimate
    index = pd.Index(m.labels, name=m.client_name)
    out = pd.DataFrame({"rows": clients.counts}, index=index)
    out["distance"] = np.einsum("mi,ij,mj->m", move, root, move) / len(m.terms)
    return out.join(pd.DataFrame(move / np.sqrt(np.diag(inverse)), index, list(m.terms)))


def _fold(A: Floats, b: Floats, D: Floats) -> tuple[Floats, Floats]:
    """Information and scores of nodes (k, p, p) and (k, p) about their parents, from which they deviate by D."""
    left = np.linalg.inv(np.eye(A.shape[-1]) + A @ D)
    return left @ A, np.einsum("kij,kj->ki", left, b)
