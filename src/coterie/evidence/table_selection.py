"""What held-out rows choose before a method is fitted: strengths of ties, and how much others count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.splits import Splits
from coterie.engines.local_engines import InProcess
from coterie.errors import CoterieError
from coterie.methods.collaboration import options as collaboration
from coterie.methods.collaboration.choose_collaborators import weights
from coterie.methods.collaboration.metric_and_similarity import around_pooled
from coterie.methods.collaboration.optimum import optimum
from coterie.methods.networks.fit import set_up
from coterie.methods.networks.optimum import Path, path
from coterie.methods.networks.options import HELD_OUT, Asked
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.methods.tree import strengths
from coterie.numerics.arrays import Floats
from coterie.objectives.holdout import HeldOut
from coterie.relations.relations_by_label import main_clients, weight_matrix
from coterie.runs.run_table_method import block_size, client_losses, objective, run

GRID = np.linspace(0.0, 1.0, 11)  # candidates for a weight of others
INNER, INNER_PATH = 5, 3  # splits of the training rows at most: for a weight, and for a path of networks
STEPS, SPAN = 20, 1e-4  # candidates for a network's strength: so many, down to this share of the largest
CLOSE = 1e-4  # KKT residual along the path, where losses are compared

Loss = Callable[[Floats], float]  # of coefficients (n, p), in the units of the table


@dataclass(frozen=True)
class Surface:
    """Mean loss over the held-out rows of all splits, over a grid of strengths."""

    grid: dict[str, list[Any]]  # candidates of gamma and, if there is another axis, of lam or alpha
    loss: Floats  # (gammas, others), in the units of the family's loss

    @property
    def chosen(self) -> dict[str, Any]:
        """The strengths with the lowest loss; of equals, the first."""
        at = np.unravel_index(int(np.argmin(np.nan_to_num(self.loss, nan=np.inf))), self.loss.shape)
        return {name: values[k] for (name, values), k in zip(self.grid.items(), at, strict=False)}


def search(clients: Clients, problem: GroupedProblem, grid: dict[str, list[Any]], splits: Splits) -> Surface:
    """The held-out loss at every point of a grid, on splits of these clients' own rows."""
    lams, alphas = grid.get("lam"), grid.get("alpha")
    loss, weight = np.zeros((len(grid["gamma"]), len(lams or alphas or [None]))), 0.0
    for train, held in splits.parts(clients):
        rows = HeldOut(*(objective(problem.in_basis(part), problem.family) for part in (train, held)))
        fed = InProcess(rows, clients.clusters, ids=clients.ids, block=block_size(clients, 4))
        for point in strengths.path(fed, problem, grid["gamma"], lams, alphas):
            loss[point.at] += point.held_out()
        if problem.family.saturated is not None:
            loss -= float(held.weights @ problem.family.saturated(held.y))
        weight += float(held.weights.sum())
    if not weight > 0.0:
        raise CoterieError("No client has a row to spare, so held-out rows choose no strengths: give one of each.")
    return Surface(grid, problem.family.loss_factor * loss / weight)


def select(clients: Clients, problem: GroupedProblem, grid: dict[str, list[Any]], splits: Splits) -> dict[str, Any]:
    """The strengths with the lowest held-out loss over rows, by splits of these clients' own rows."""
    if all(len(values) == 1 for values in grid.values()):
        return {name: values[0] for name, values in grid.items()}
    if splits.count == 0:
        raise CoterieError("A grid of strengths is chosen from by held-out rows: ask for at least one split.")
    return search(clients, problem, grid, splits.inner(splits.count)).chosen


def positioned(clients: Clients, rounds: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a method of main clients as a user gives them, with positions for labels.

    A CoterieError for labels that are not there, weights that cannot be, and where there are no collaborators.
    """
    if len(clients) < 2:
        raise CoterieError("There are no collaborators: the table has one client only, so fit it by method 'local'.")
    if rounds.get("within") == "cluster" and not clients.levels:
        raise CoterieError("Collaborators within a cluster need clusters: name a cluster column (--cluster).")
    out = dict(rounds)
    if out.get("main") is not None:
        out["main"] = main_clients(clients, out["main"])
    named = isinstance(out.get("tau"), Mapping)
    if not isinstance(out.get("tau", "auto"), str):
        out["tau"] = weight_matrix(clients, out["tau"])
    if named:
        out.setdefault("main", np.flatnonzero(np.diff(out["tau"].indptr) > 0))
    return out


def resolved(
    clients: Clients, problem: GroupedProblem, rounds: Mapping[str, Any], corrected: bool, splits: Splits
) -> dict[str, Any]:
    """The same, with numbers for words.

    Splits of these clients' own rows answer "held-out": for ``corrected`` methods, which are bias correction, it is
    asked of ``keep``, else of ``alpha``. A CoterieError where there are no splits.
    """
    out = positioned(clients, rounds)
    name = "keep" if corrected else "alpha"
    if corrected and isinstance(out.get("alpha"), str) and out["alpha"] == collaboration.HELD_OUT:
        raise CoterieError("Held-out rows choose alpha for weighted-averaging; with bias-correction they choose keep.")
    if isinstance(out.get(name), str) and out[name] == collaboration.HELD_OUT:
        if splits.count == 0:
            raise CoterieError(f"{name} is to be chosen by held-out rows: ask for at least one split.")
        inner = splits.inner(INNER)
        loss = weight_losses(clients, problem, collaboration.Options.of(out, corrected), corrected, inner)
        out[name] = float(GRID[int(np.argmin(loss))])
    return out


def weight_losses(
    clients: Clients, problem: GroupedProblem, options: collaboration.Options, corrected: bool, splits: Splits
) -> Floats:
    """Mean held-out losses (11,) of main clients for every candidate of ``GRID``, where the method ends up."""
    asked = replace(options, keep=0.0) if corrected else replace(options, alpha=1.0)
    loss, rows = np.zeros(len(GRID)), 0.0
    for train, held in splits.parts(clients):
        train, held = problem.in_basis(train), problem.in_basis(held)
        fed = InProcess(objective(train, problem.family), clients.clusters, ids=clients.ids)
        everyone, metric = around_pooled(fed, problem)
        chosen = weights(fed, metric, asked, corrected)
        theta = everyone.client.copy()
        start = None
        for i, share in enumerate(GRID):
            start = optimum(fed, chosen.pairs, share * chosen.alpha, asked.with_prior(metric), start).theta
            theta[chosen.pairs.main] = start
            loss[i] += client_losses(held, problem.family, theta)[chosen.pairs.main].sum()
        rows += float(held.weights.sum())
    if not rows > 0.0:
        raise CoterieError("No client has a row to spare, so held-out rows choose nothing: give a number instead.")
    return loss / rows


def chooses_lam(asked: Asked, splits: Splits) -> bool:
    """Whether held-out rows choose a network's lam; a CoterieError where none can be held out."""
    if asked.lam == HELD_OUT and splits.count == 0:
        raise CoterieError(
            "lam of the network is to be chosen by held-out rows: ask for one split or more, or give lam."
        )
    return asked.lam == HELD_OUT


def choose_lam(
    clients: Clients, problem: GroupedProblem, network: Mapping[str, Any], splits: Splits
) -> tuple[dict[str, Any], list[tuple[float, float]]]:
    """The options of a network with a number for its lam, which held-out rows of these clients choose; and those tried.

    Candidates are those of the path from where all clients of a component are one, down to 0, where all are alone: each
    with its mean held-out loss, from infinity down; none where lam was given. A CoterieError where no rows can be held
    out.
    """
    asked = Asked.of(network)
    if not chooses_lam(asked, splits):
        return dict(network), []
    inner = splits.inner(INNER_PATH)
    lam: Floats | None = None
    losses, rows = [], 0.0
    for train, held in inner.parts(clients):

        def tell(theta: Floats, held: Clients = held) -> float:
            return float(client_losses(held, problem.family, theta).sum())

        found = clusterpath(train, problem, asked, lam, tell)
        lam = found.lam[1:]
        losses.append(np.append(found.loss, tell(run("local", train, problem, {})[0].client)))
        rows += float(held.weights.sum())
    if not rows > 0.0:
        raise CoterieError("No client has a row to spare, so held-out rows choose no lam: give lam a number.")
    candidates = np.concatenate([[np.inf], [] if lam is None else lam, [0.0]])
    tried = list(zip(candidates.tolist(), (np.sum(losses, axis=0) / rows).tolist(), strict=True))
    return dict(network) | {"lam": min(tried, key=lambda t: t[1])[0]}, tried


def clusterpath(
    clients: Clients,
    problem: GroupedProblem,
    asked: Asked,
    lam: Floats | None = None,
    loss: Loss | None = None,
    kkt: float = CLOSE,
) -> Path:
    """The path of a network along lam; ``loss`` is of coefficients (n, p) in the units of the table."""
    fed = InProcess(objective(clients, problem.family), clients.clusters, ids=clients.ids)
    standard, to_table, setup, graph, how = set_up(fed, problem, asked)
    tell = None if loss is None else lambda theta: loss((theta * setup.unit) @ to_table.T)
    return path(standard, graph, asked.p, **how, lam=lam, steps=STEPS, span=SPAN, loss=tell, kkt=kkt)
