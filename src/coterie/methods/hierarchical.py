"""Lyu, Hanzely, Kolar (2022), the tree model (5.1): one model for every client, with learned or given strengths.

Learned variances replace the grid search of section 6.2. Given strengths are those of objective (2.3), or of (2.1)
through Proposition 2.2: ``lambda_j = alpha_j Gamma_j / (1 - alpha_j)`` with ``Gamma_j`` the cluster's sum of gamma_i.
The minimiser is Henderson's BLUP for any design, which is also the marginalised estimator of Proposition 5.3.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from coterie.federation import Federation, PerRow
from coterie.methods.fitted import Fitted, Problem, collect
from coterie.methods.penalised_tree import solve
from coterie.methods.setup import Setup, prepare
from coterie.methods.variances import State, Variances
from coterie.numerics.kernels import Floats
from coterie.relations.covariance import STRUCTURES, Structure


def fit(fed: Federation, problem: Problem, covariance: str = "auto", reml: bool = True, own: bool = False) -> Fitted:
    """Learn the variances and solve the tree under them.

    Parameters
    ----------
    covariance : {"auto", "isotropic", "two", "diagonal", "full"}, default "auto"
        Structure of D, in standard units of the columns. "auto" takes the smallest deviance plus ``log(clients)`` for
        each variance parameter.
    reml : bool, default True
        Restricted likelihood, for a Gaussian outcome.
    own : bool, default False
        Every finest cluster has its own client variances.
    """
    reml = reml and problem.family == "gaussian"
    setup = prepare(fed, problem.tree, problem.family, problem.personal, problem.intercept)
    tried: dict[str, float] = {}
    best: tuple[Variances, State] | None = None
    for name in candidates(covariance, problem, len(fed.clients)):
        search = Variances(setup, structures(name, problem, automatic=covariance == "auto"), own, reml)
        *_, state = search.run(fed)
        state = snap(fed, search, state)
        parameters = sum(g * len(s) for g, s in zip(search.groups, search.structures, strict=True))
        tried[name] = state.deviance + parameters * float(np.log(len(fed.clients)))
        if best is None or tried[name] <= min(tried.values()):
            best = search, state
    if best is None:
        raise AssertionError
    search, state = best
    deviance, s, sigma2 = search.evaluate(fed, state.x, state.u)
    fitted = collect(fed, setup, s, search.factors(state.x)[0], sigma2)
    units = float(np.log(setup.unit).sum()) if reml else 0.0
    constant = setup.constant - (0.5 * setup.rows * np.log(2.0 * np.pi) if problem.family == "gaussian" else 0.0)
    info = {"covariance": search.structures[0].name, "criterion": tried, "status": state.status}
    info |= {"iterations": state.iteration, "reml": reml, "own": own}
    return replace(fitted, log_likelihood=-0.5 * deviance + units - constant, info=info)


def candidates(covariance: str, problem: Problem, clients: int) -> list[str]:
    """Structures to try: one that was asked for, or all that the number of clients can carry."""
    if covariance != "auto":
        return [covariance]
    q = len(problem.personal)
    if q <= 1:
        return ["diagonal"]
    names = [n for n in STRUCTURES if n != "two" or (problem.intercept in problem.personal and q > 2)]
    return [n for n in names if n != "full" or (q <= 8 and clients >= 5 * q * (q + 1))]


def structures(name: str, problem: Problem, automatic: bool = False) -> tuple[Structure, ...]:
    """The structure of every level; one with a single node has no variance, and "auto" keeps small levels simple."""
    q = len(problem.personal)
    at = np.flatnonzero(problem.personal == problem.intercept)
    intercept = int(at[0]) if len(at) else None
    out = [Structure.named(name, q, intercept)]
    for nodes in problem.tree.sizes[:-1]:
        simple = "two" if automatic and nodes < 5 * q else "diagonal" if automatic and name == "full" else name
        level = Structure.named(simple if name != "isotropic" else name, q, intercept)
        out.append(level if nodes > 1 else Structure(name, level.basis[:0]))
    return tuple(out)


def snap(fed: Federation, search: Variances, state: State) -> State:
    """Standard deviations that might as well be zero are zero: an answer, not a failure to converge."""
    a = sum(g * len(s) for g, s in zip(search.groups, search.structures, strict=True))
    small = np.zeros(len(state.x), dtype=bool)
    small[:a] = np.abs(state.x[:a]) < 0.02
    if not small.any() or any(s.name == "full" for s in search.structures):
        return state
    x = np.where(small, 0.0, state.x)
    deviance, s, _ = search.evaluate(fed, x, state.u)
    if deviance <= state.deviance + 1e-6 + 1e-11 * abs(state.deviance):
        return replace(state, x=x, deviance=deviance, u=s.positions.u)
    return state


Strength = float | npt.NDArray[np.float64]


def given(
    fed: Federation, problem: Problem, gamma: Strength, lam: Strength | None = None, alpha: Strength | None = None
) -> Fitted:
    """Solve (2.3), or (2.1) where alpha is given, with ``f_i`` the negative log-likelihood (``|y - X theta|^2 / 2``).

    Parameters
    ----------
    gamma : float or (m,)
        How strongly each client is tied to its cluster; 0 leaves it alone.
    lam : float or (k,), optional
        How strongly each cluster is tied to the root, at the finest level; coarser levels take a number.
    alpha : float or (k,), optional
        The same in the form (2.1), 0 (clusters apart) to 1 (no clusters).
    """
    setup = prepare(fed, problem.tree, problem.family, problem.personal, problem.intercept)
    gamma = np.broadcast_to(np.asarray(gamma, dtype=np.float64), (len(fed.clients),))
    if alpha is not None:
        total = np.bincount(fed.clients.clusters, gamma, minlength=problem.tree.sizes[0])
        with np.errstate(divide="ignore"):
            lam = np.asarray(alpha) * total / (1.0 - np.asarray(alpha))
    L = [_factor(setup, np.ones(1))]
    for nodes in problem.tree.sizes[:-1]:
        L.append(
            _factor(setup, np.broadcast_to(np.asarray(np.inf if lam is None else lam, dtype=np.float64), (nodes,)))
        )
    with np.errstate(divide="ignore"):
        strength = PerRow(gamma**-0.5)
    s = solve(fed, setup, L, strength=strength)
    sigma2 = s.value / setup.rows if problem.family == "gaussian" else 1.0
    return collect(fed, setup, s, L, sigma2, strength=strength)


def _factor(setup: Setup, strength: Floats) -> Floats:
    """L (g, q, q) of the penalty ``strength / 2 |deviation|^2`` in the table's units: ``strength^-1/2 / unit``."""
    with np.errstate(divide="ignore"):
        size = strength[:, None] ** -0.5 / setup.unit[setup.z]
    return np.where(np.isinf(size)[:, :, None], np.inf, size[:, :, None] * np.eye(len(setup.z)))
