"""Rows held out where they are: split at the site, and what it answers of their losses.

Every split is a run of its own at the sites (``<run>.split0``), whose objectives hold the training rows with the rows
that are held out beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.data.clients import Clients
from coterie.data.splits import BY, TEST, VALIDATION, KeyedRows, SortedRows, share, split_rows
from coterie.errors import CoterieError
from coterie.federation import Ints, Site, work
from coterie.numerics.arrays import Bools, Floats
from coterie.objectives.glm import GLM
from coterie.objectives.row_kernels import totals
from coterie.runs.run_table_method import client_losses, objective

if TYPE_CHECKING:
    from coterie.engines.ray.actors import Parts
    from coterie.engines.ray.parquet_shards import Shard

DEEPEST = 2
"""Cuts of training rows: for choices among settings, and within these for when to stop."""


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


@dataclass(frozen=True)
class Cut:
    """A split that was asked for: the rows of a run, of those that it trains on, and of those that stand beside.

    ``hold`` has the seed, the repeat and the fraction of the rows to test on, ``by`` the argument and the column that
    say which, if any does. The others are cut ``depth`` times more, by the ``fraction`` of rows that choices are made
    by, and those of the cut ``side`` stand beside what is left: 0 are the rows to test on.
    """

    hold: dict[str, Any]
    by: dict[str, str]
    fraction: float = 0.0
    depth: int = 0
    side: int = 0

    @classmethod
    def of(cls, hold: Any) -> Cut:
        """As it was sent; a CoterieError for what is none."""
        rest = dict(hold) if isinstance(hold, Mapping) else {}
        by, inside = rest.pop("by", {}), rest.pop("inside", {})
        kinds, more = {"seed": int, "repeat": int, "fraction": float}, {"fraction": float, "depth": int, "side": int}
        fair = isinstance(by, Mapping) and len(by) < 2 and all(type(v) is str and k in BY for k, v in by.items())
        fair &= isinstance(inside, Mapping) and (not inside or {k: type(v) for k, v in inside.items()} == more)
        fair = fair and (not inside or 0 <= inside["side"] <= inside["depth"] <= DEEPEST)
        if not fair or {k: type(v) for k, v in rest.items()} != kinds:
            raise CoterieError("A split is a seed, a repeat and a fraction: use one version of coterie at all sites.")
        return cls(rest, dict(by), **inside)

    def fractions(self) -> list[dict[str, Any]]:
        """The seed, repeat and fraction of every cut."""
        inner = self.hold | {"repeat": self.hold["repeat"] + 1, "fraction": self.fraction}
        return [self.hold, *[inner] * self.depth]

    def sides(self, rows: SortedRows, given: Ints | None = None, **keys: Any) -> tuple[Bools, list[Bools]]:
        """Which rows (n,) are trained on, and which each cut sets aside, as one process has it.

        ``given`` (n,) are the rows' sides, ``keys`` their order or their groups. A CoterieError where a client has no
        row to train on.
        """
        left, found = np.ones(len(rows.codes), dtype=bool), []
        for k, how in enumerate(self.fractions()):
            at = np.flatnonzero(left)
            test = np.zeros(len(at), dtype=bool) if given is None else given[at] == (VALIDATION if k else TEST)
            if how["fraction"] and (given is None or (k and not test.any())):
                some = KeyedRows(rows.ids, rows.codes[at], np.bincount(rows.codes[at], minlength=len(rows.ids)))
                test = split_rows(some, **how, **{name: getattr(v, "iloc", v)[at] for name, v in keys.items()})
            found.append(np.isin(np.arange(len(left)), at[test]))
            left &= ~found[-1]
        if np.any((rows.counts > 0) & (np.bincount(rows.codes[left], minlength=len(rows.ids)) == 0)):
            raise CoterieError("All rows of a client are held out, so that no model can be fitted on any.")
        return left, found

    def told(self, left: Bools, sides: list[Bools]) -> tuple[Bools, ...]:
        """The rows (n,) of which sums tell: those trained on, those beside them, and between them both, if one cut did.

        Of rows that one cut divides, the sum over both sides gives one side by the other.
        """
        held = sides[self.side]
        return (left, left | held, held) if self.side == self.depth else (left, held)

    def fewest(self, counts: Ints, ids: Any) -> Ints:
        """The fewest rows (m,) that a client with ``counts`` (m,) has on any side that is drawn."""
        left, sides = np.array(counts), list[Ints]()
        for how in self.fractions():
            if how["fraction"]:
                sides.append(share(left, ids, how["fraction"], how["seed"], how["repeat"]))
                left = left - sides[-1]
        return np.asarray(np.minimum.reduce([left, *sides]))


def split_holdout(o: GLM, ids: Any, cut: Cut, **keys: Any) -> tuple[TrainingRows, Bools, list[Bools]]:
    """A site's objective with the rows of a split set aside, as :func:`coterie.fit` has it; and its :meth:`Cut.sides`.

    ``keys`` are those of :meth:`Cut.sides`.
    """
    clients = Clients(
        o.X, o.y, o.offset, o.weights, o.starts, o.stops, (), np.empty(0), "", ids, (),
        np.zeros(len(ids), np.int64), np.arange(len(o.y)),
    )  # fmt: skip
    left, sides = cut.sides(clients, **keys)
    train, held = (objective(clients.subset(rows), o.family) for rows in (left, sides[cut.side]))
    return TrainingRows(**vars(train), held=held), left, sides


def set_aside(hold: Mapping[str, Any], shard: Shard) -> Parts:
    """What an actor's site is made of where the rows of a split are held out."""
    parts: Any = shard.parts
    objective, _, _, ids = parts
    c = shard.clients
    if c is not None:
        objective, ids = replace(objective, starts=c.starts, stops=c.stops), c.ids
    train, *_ = split_holdout(objective, ids, Cut.of(hold))
    return train.take(shard.order), *parts[1:]


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
