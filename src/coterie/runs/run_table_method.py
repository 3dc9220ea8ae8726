"""Methods of tables whose rows are here: rows as an objective, a run of a method, and its losses on other rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.data.clients import Clients
from coterie.engines.client_work_and_state import BLOCK
from coterie.engines.local_engines import InProcess, local_engine
from coterie.families import Family, family_named
from coterie.methods.method import Method
from coterie.methods.problem_and_estimates import Estimates, GroupedProblem, in_table, in_unit
from coterie.methods.registry import FITTED
from coterie.numerics.arrays import Floats
from coterie.objectives.glm import GLM
from coterie.objectives.row_kernels import totals
from coterie.relations.clusters import ClusterTree

ALONE = "collaboration.fit:alone"
"""The function that stands for a main client's method where its own rows alone are to make a model."""
ROWS_PER_BLOCK = 16_384
"""Enough work for a thread to be worth its start."""

FAR = 1e30
"""Outcomes beyond it, or below its inverse, are fitted in another unit."""

STARTING: ContextVar[Callable[[], None]] = ContextVar("starting", default=lambda: None)
"""Called once table and options are checked, before the first method is fitted: who waits can be told what was read."""


def block_size(clients: Clients, times: int = 1) -> int:
    """Clients of a block of which each thread has work enough, where work is by rows in every exchange."""
    return int(np.clip(len(clients) * times * ROWS_PER_BLOCK // max(len(clients.y), 1), 64, BLOCK))


def objective(clients: Clients | GLM, family: Family | str) -> GLM:
    """The clients' rows as an objective, without a copy."""
    c = clients
    return GLM(c.X, c.y, c.offset, c.weights, c.starts, c.stops, family_named(family))


def client_losses(clients: Clients | GLM, family: Family | str, theta: Floats) -> Floats:
    """Sum of the rows' losses, times their weights, for every client at its parameters theta (m, p).

    The loss is the one that the family names: squared error, log loss, or a deviance.
    """
    family = family_named(family)
    losses = objective(clients, family).value(theta)
    if family.saturated is not None:
        losses = losses - totals(clients.weights * family.saturated(clients.y), clients.starts, clients.stops)
    return family.loss_factor * losses


def run_alone(name: str, clients: Clients, problem: GroupedProblem, options: dict[str, Any]) -> Estimates:
    """A model of every client's own rows under the prior of a main client's method."""
    options = {"rounds": {k: v for k, v in options.get("rounds", {}).items() if k in ("prior", "seed")}}
    return run(replace(FITTED[name], fits=ALONE), clients, problem, options)[0]


def run(
    name: str | Method,
    clients: Clients,
    problem: GroupedProblem,
    options: dict[str, Any],
    engine: Mapping[str, Any] | None = None,
) -> tuple[Estimates, dict[str, float]]:
    """Fit a method with those of the options that it takes; what it returns, and what it cost.

    ``engine`` has the keys of an ``[engine]``.
    """
    method = FITTED[name] if isinstance(name, str) else name
    taken = {key: value for key, value in options.items() if key in method.takes}
    if method.flat:
        problem = replace(problem, tree=ClusterTree())
    if not method.turns:
        problem = replace(problem, basis=None)
    clients, problem, unit = in_other_units(problem.in_basis(clients), problem)
    here = None if method.flat else clients.clusters
    block = BLOCK if problem.family.is_quadratic else block_size(clients)
    where = dict(engine or {})
    where["seed"] = int(taken.get("rounds", {}).get("seed", where.get("seed") or 0))  # of rows that are drawn
    with local_engine(objective(clients, problem.family), here, clients.ids, block=block, **where) as fed:
        if isinstance(fed, InProcess) and taken.get("intervals"):  # which can be asked when they are read
            taken["intervals"] = "later"
        fitted = method.fit(fed, problem, **taken)
    if problem.basis is not None:
        fitted = in_table(fitted, problem.basis.matrix)
    return fitted if unit == 1.0 else in_unit(fitted, unit), fed.ledger.as_dict()


def in_other_units(clients: Clients, problem: GroupedProblem) -> tuple[Clients, GroupedProblem, float]:
    """Outcomes that may be any number, and are too large or small for powers of them, in a unit that is a power of 2.

    All methods for them are linear in outcomes.
    """
    family, top = problem.family, max(float(np.abs(clients.y).max()), float(np.abs(clients.offset).max()))
    if not family.any_number or 1.0 / FAR < top < FAR or not 0.0 < top < np.inf:
        return clients, problem, 1.0
    unit = float(np.exp2(np.rint(np.log2(top))))
    if family.usual is not None and family.dispersion is not None:
        problem = replace(problem, family=family.at(family.dispersion / unit**2))
    return replace(clients, y=clients.y / unit, offset=clients.offset / unit), problem, unit
