"""Main clients and weights by label, and what held-out rows choose, before a main client's method runs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.labels import find_labels
from coterie.engines.inprocess import InProcess
from coterie.errors import CoterieError, nearest
from coterie.evidence.splits import Splits
from coterie.methods.collaboration.fit import weights
from coterie.methods.collaboration.metric import around_pooled
from coterie.methods.collaboration.optimum import optimum
from coterie.methods.collaboration.options import HELD_OUT, Options
from coterie.methods.estimates import GroupedProblem
from coterie.numerics.kernels import Floats, Ints
from coterie.runs.table_methods import client_losses, objective

GRID = np.linspace(0.0, 1.0, 11)
"""Candidates for a weight that held-out rows choose."""
INNER = 5
"""Splits of the training rows at most, with which they do."""


def resolved(
    clients: Clients, problem: GroupedProblem, rounds: Mapping[str, Any], corrected: bool, splits: Splits
) -> dict[str, Any]:
    """The options of a method of main clients, with positions for labels and numbers for "held-out".

    Parameters
    ----------
    rounds : mapping
        As a user gives them: see ``methods.collaboration.options.Options``.
    corrected : bool
        Whether the method is bias correction, for which ``keep`` is chosen.
    splits : Splits
        Of these clients' own rows, with which "held-out" is answered.

    Raises
    ------
    CoterieError
        For labels that are not there, weights that cannot be, and where there are no collaborators or no splits.
    """
    if len(clients) < 2:
        raise CoterieError("There are no collaborators: the table has one client only, so fit it by method 'local'.")
    if rounds.get("within") == "cluster" and not clients.levels:
        raise CoterieError("Collaborators within a cluster need clusters: name a cluster column (--cluster).")
    out = dict(rounds)
    if out.get("main") is not None:
        out["main"] = main_clients(clients, out["main"])
    if isinstance(out.get("tau"), Mapping):
        out["tau"] = _matrix(clients, out["tau"])
        out.setdefault("main", np.flatnonzero(np.diff(out["tau"].indptr) > 0))
    elif not isinstance(out.get("tau", "auto"), str):
        out["tau"] = _square(clients, out["tau"])
    name = "keep" if corrected else "alpha"
    if corrected and isinstance(out.get("alpha"), str) and out["alpha"] == HELD_OUT:
        raise CoterieError("Held-out rows choose alpha for weighted-averaging; with bias-correction they choose keep.")
    if isinstance(out.get(name), str) and out[name] == HELD_OUT:
        if splits.count == 0:
            raise CoterieError(f"{name} is to be chosen by held-out rows: ask for at least one split.")
        inner = Splits(min(splits.count, INNER), splits.fraction, splits.seed + 1)
        loss = held_out(clients, problem, Options.of(out, corrected), corrected, inner)
        out[name] = float(GRID[int(np.argmin(loss))])
    return out


def held_out(clients: Clients, problem: GroupedProblem, options: Options, corrected: bool, splits: Splits) -> Floats:
    """Mean held-out losses (11,) of main clients for every candidate of ``GRID``, where the method ends up."""
    asked = replace(options, keep=0.0) if corrected else replace(options, alpha=1.0)
    loss, rows = np.zeros(len(GRID)), 0.0
    for mask in splits.masks(clients):
        train, held = clients.split(mask)
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


def main_clients(clients: Clients, named: Any) -> Ints:
    """Positions of the clients that a user names as main ones: a label or several."""
    labels = [named] if isinstance(named, str) or np.ndim(named) == 0 else list(named)
    if not labels:
        raise CoterieError("main names no client: name one at least, or leave it out, and every client is a main one.")
    return np.array([_position(clients, label, "main") for label in labels], dtype=np.int64)


def _position(clients: Clients, label: Any, what: str) -> int:
    if not isinstance(label, Hashable):
        raise CoterieError(f"{what} names a {clients.name} by its label, not by {label!r}.")
    at = int(find_labels(clients.labels, np.array([label], dtype=object))[0])
    if at < 0:
        known = [str(name) for name in clients.labels]
        raise CoterieError(f"{what} names {clients.name} {label!r}, which is not there.{nearest(str(label), known)}")
    return at


def _matrix(clients: Clients, tau: Mapping[Any, Any]) -> Any:
    """``{main: {collaborator: weight}}`` as a sparse matrix."""
    from scipy.sparse import csr_array

    entries = []
    for main, others in tau.items():
        if not isinstance(others, Mapping):
            raise CoterieError(f"tau of {main!r} must be a mapping from collaborators to weights, not {others!r}.")
        for other, weight in others.items():
            if not isinstance(weight, (int, float, np.number)) or isinstance(weight, bool):
                raise CoterieError(f"The weight tau of {other!r} for {main!r} must be a number, not {weight!r}.")
            entries.append((_position(clients, main, "tau"), _position(clients, other, "tau"), float(weight)))
    if not entries:
        raise CoterieError("tau names no collaborators: name one at least, or leave tau out.")
    i, j, v = (np.array(a) for a in zip(*entries, strict=True))
    return csr_array((v, (i, j)), shape=(len(clients), len(clients)))


def _square(clients: Clients, tau: Any) -> Any:
    from scipy.sparse import csr_array, issparse

    n = len(clients)
    try:
        W: Any = tau if issparse(tau) else np.asarray(tau, dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise CoterieError("tau must be auto, equal, a mapping {main: {other: weight}} or a matrix of numbers.") from e
    if W.shape != (n, n):
        shape = " x ".join(str(size) for size in W.shape) or "a number"
        raise CoterieError(f"A matrix tau must be {n} x {n}, clients by clients, not {shape}.")
    return csr_array(W).astype(np.float64)
