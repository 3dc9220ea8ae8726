"""Rows held out where they are: split at the site, and what it answers of their losses.

Every split is a run of its own at the sites (``<run>.split0``), whose objectives hold the training rows with the rows
that are held out beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.splits import BY, split_rows
from coterie.errors import CoterieError
from coterie.federation import Ints, Site, work
from coterie.numerics.arrays import Bools, Floats
from coterie.objectives.glm import GLM
from coterie.objectives.row_kernels import totals
from coterie.runs.run_table_method import client_losses, objective


@dataclass(frozen=True)
class TrainingRows(GLM):
    """The clients' training rows, with their rows that are held out (``held``) beside them."""

    held: GLM = field(kw_only=True)

    @property
    def covers(self) -> Ints:
        """Rows of every client that a sum tells of: the difference from the sum of all rows tells of those held out."""
        return np.minimum(self.counts, self.held.counts)

    def take(self, rows: slice | Ints) -> TrainingRows:
        """The same rows seen as other clients."""
        return replace(self, starts=self.starts[rows], stops=self.stops[rows], held=self.held.take(rows))


def read_split(hold: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Seed, repeat and fraction of a split that was asked for, and the argument and column it goes by, if it does."""
    rest = dict(hold) if isinstance(hold, Mapping) else {}
    by, kinds = rest.pop("by", {}), {"seed": int, "repeat": int, "fraction": float}
    fair = isinstance(by, Mapping) and len(by) < 2 and all(type(v) is str and k in BY for k, v in by.items())
    if not fair or {k: type(v) for k, v in rest.items()} != kinds:
        raise CoterieError("A split is a seed, a repeat and a fraction: use one version of coterie at all sites.")
    return rest, dict(by)


def split_holdout(
    o: GLM, labels: Any, ids: Any, hold: Mapping[str, Any], given: Bools | None = None, **keys: Any
) -> tuple[TrainingRows, Bools]:
    """A site's objective with the rows of a split set aside, and which (n,) are, as :func:`coterie.fit` has it.

    ``hold`` has ``seed``, ``repeat`` and ``fraction``, and ``keys`` are the order or the groups of the rows, as for
    :func:`coterie.data.splits.split_rows`; ``given`` (n,) are the rows themselves. A CoterieError where a client has
    no other.
    """
    clients = Clients(
        o.X, o.y, o.offset, o.weights, o.starts, o.stops, (), labels, "", ids, (),
        np.zeros(len(ids), np.int64), np.arange(len(o.y)),
    )  # fmt: skip
    test = split_rows(clients, **hold, **keys) if given is None else given
    if np.any((clients.counts > 0) & (np.bincount(clients.codes[~test], minlength=len(ids)) == 0)):
        raise CoterieError("All rows of a client are held out, so that no model can be fitted on any.")
    train, held = (objective(clients.subset(rows), o.family) for rows in (~test, test))
    return TrainingRows(**vars(train), held=held), test


@work
def baselines(site: Site, root: Floats, unit: Floats | None = None, origin: Floats | None = None) -> dict[str, Any]:
    """Every client keeps its held-out losses at its own parameters and at those of all (root, (p,)).

    ``origin + unit * theta`` are its own parameters where it keeps no coefficients.
    """
    held = site.objective.held
    own = site.state["coefficients"] if unit is None or origin is None else origin + unit * site.state["theta"]
    site.state["held_local"] = client_losses(held, held.family, own)
    site.state["held_pooled"] = client_losses(held, held.family, np.broadcast_to(root, own.shape))
    return {}


@work
def keep(site: Site, name: str, theta: Floats | None = None) -> dict[str, Any]:
    """Every client keeps its held-out losses under a method: at theta (m, p), or at the coefficients that it keeps."""
    held = site.objective.held
    at = site.state["coefficients"] if theta is None else theta
    site.state[f"held_{name}"] = client_losses(held, held.family, at)
    return {}


@work
def losses(site: Site, names: list[str]) -> dict[str, Any]:
    """Each client's held-out losses (m, methods) under some methods, and the number and weights of these rows."""
    held = site.objective.held
    found = [site.state[f"held_{name}"] for name in names]
    weight = totals(held.weights, held.starts, held.stops)
    return {"rows": held.counts, "weight": weight, "losses": np.stack(found, axis=1)}


@work
def moments(site: Site, names: list[str]) -> dict[str, Any]:
    """Of each client's mean held-out losses what a comparison needs of their sums: see :class:`Summed`."""
    found = losses(site, names)
    tested = found["weight"] > 0.0
    mean = found["losses"] / np.where(tested, found["weight"], 1.0)[:, None]
    gain = mean[:, None, :] - mean[:, :, None]
    own = {"tested": tested.astype(np.int64), "mean": mean, "square": mean**2, "better": (gain > 0.0).astype(np.int64)}
    return {"rows": found["rows"], "weight": found["weight"], "losses": found["losses"], "apart": gain**2} | own
