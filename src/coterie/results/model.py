"""The one form that every method's model takes, and the tree that its nodes make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.data.clients import Level
from coterie.data.labels import find_labels
from coterie.families import Family, family_named
from coterie.methods.problem_and_estimates import Estimates
from coterie.numerics.arrays import Floats, Ints, pack


@dataclass(frozen=True, eq=False, kw_only=True)
class Model(Estimates):
    """Estimates with what they are of: the method, the columns and the tree of labels."""

    method: str
    family: str  # a name of ``families.FAMILIES``
    terms: tuple[str, ...]  # (p,)
    client_name: str  # the client column
    labels: npt.NDArray[Any]  # (m,): of the clients
    levels: tuple[Level, ...]  # of clusters, fine to coarse
    clusters: Ints  # (m,): finest cluster of each client
    personal: Ints  # (q,): columns that differ between clients

    def __getstate__(self) -> dict[str, Any]:
        _ = self.root_cov  # what is to come does not travel
        return vars(self)

    @property
    def varies(self) -> bool:
        """Whether clients have coefficients of their own."""
        return bool(np.any(self.client != self.root))

    @property
    def scattering(self) -> Family:
        """The family, at the dispersion that was found."""
        family = family_named(self.family)
        return family.at(self.sigma2) if family.unknown else family

    @property
    def has_variances(self) -> bool:
        """Whether the method says how far clients and clusters stray from their parents."""
        return self.method in ("hierarchical", "single-cluster")


_READING = Lock()
UNSURE = ("root_cov", "node_cov", "client_cov", "uncertainty")


class _Unsure:
    """A field of covariances; where the uncertainty of the variances is to come :attr:`~Estimates.later`, once read."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __set__(self, model: Model, value: Any) -> None:
        vars(model)[self.name] = value

    def __get__(self, model: Model | None, owner: type) -> Any:
        if model is None:
            return self
        with _READING:
            if model.later is not None:
                found = model.later()
                vars(model).update({name: getattr(found, name) for name in UNSURE}, later=None)
        return vars(model)[self.name]


for name in UNSURE:
    setattr(Model, name, _Unsure(name))


@dataclass(frozen=True, eq=False)
class Nodes:
    """A model's tree, level by level: 0 the clients, then the clusters fine to coarse, last the root."""

    model: Model

    @property
    def levels(self) -> tuple[Level, ...]:
        """The cluster levels that the method uses: those it has coefficients for."""
        return self.model.levels[: len(self.model.nodes)]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What answers at each level: "client", "cluster" (or the columns' names if there are several), "global"."""
        levels = self.levels
        if len(levels) == 1:
            return ("client", "cluster", "global")
        taken = ("client", "global")
        return ("client", *(f"{v.name} (cluster)" if v.name in taken else v.name for v in levels), "global")

    @cached_property
    def parents(self) -> tuple[Ints, ...]:
        """Each node's place in the next coarser level; the root has none."""
        m = self.model
        return (
            m.clusters if self.levels else np.zeros(len(m.labels), dtype=np.int64),
            *(v.parent for v in self.levels[:-1]),
            *(np.zeros(len(v.labels), dtype=np.int64) for v in self.levels[-1:]),
        )

    @cached_property
    def coefficients(self) -> tuple[Floats, ...]:
        """(k, p) for each level."""
        m = self.model
        return (m.client, *m.nodes[: len(self.levels)], m.root[None])

    @cached_property
    def covariances(self) -> tuple[Floats, ...]:
        """Packed (k, P) for each level."""
        m = self.model
        return (m.client_cov, *m.node_cov[: len(self.levels)], pack(m.root_cov)[None])

    @cached_property
    def varies(self) -> tuple[bool, ...]:
        """Whether any node of a level differs from its parent; True for the root."""
        pairs = zip(self.coefficients[:-1], self.coefficients[1:], self.parents, strict=True)
        return (*(not np.allclose(own, above[parent], rtol=1e-10, atol=0.0) for own, above, parent in pairs), True)

    def locate(self, clients: Any, clusters: Mapping[str, Any]) -> tuple[Ints, Ints, int]:
        """The level (n,) and the place in it (n,) that answers each row, of labels (n,), those of clusters by level.

        A level whose nodes all equal their parents answers nothing: its parents do. The number is that of rows whose
        client, or cluster, was in another cluster when the model was fitted; its own model answers them.
        """
        place = find_labels(self.model.labels, clients)
        level = np.where(place >= 0, 0, len(self.names) - 1)
        moved = np.zeros(len(place), dtype=bool)
        above = np.where(place >= 0, self.parents[0][place], -1)
        for at, known in enumerate(self.levels, start=1):
            if known.name in clusters:
                found = find_labels(known.labels, clusters[known.name])
                moved |= (above >= 0) & (found >= 0) & (found != above)
                use = (level > at) & (found >= 0)
                level[use], place[use], above[use] = at, found[use], found[use]
            above = np.where(above >= 0, self.parents[at][above], -1)
        place[level == len(self.names) - 1] = 0
        for at, parent in enumerate(self.parents):
            if not self.varies[at]:
                here = level == at
                place[here] = parent[place[here]]
                level[here] = at + 1
        return level, place, int(moved.sum())

    @cached_property
    def doubt(self) -> tuple[Floats, ...]:
        """Relative variances (k,) of each level's covariances; zero where variances are taken as known."""
        u = self.model.uncertainty
        if u is None:
            return tuple(np.zeros(len(c)) for c in self.coefficients)
        return (u.client, *u.nodes[: len(self.levels)], np.zeros(1))

    def directions(self, level: int) -> Floats:
        """Packed (n, P): those in which the covariance of who hangs, unknown, on a node may be another one.

        For the root they are those of its own covariance too, beside which the relative variance is zero.
        """
        u, P = self.model.uncertainty, pack(self.model.root_cov).size
        if u is None:
            return np.empty((0, P))
        own = [u.root] if level == len(self.names) - 1 else [np.zeros_like(u.root)]
        return pack(np.stack([*own, *u.levels[:level]]).sum(axis=0))

    def below(self, level: int) -> Floats | None:
        """Packed covariance (1 or k, P) of an unknown client around a node of this level; None where nothing is known.

        Methods without variances (local models, for one) do not say how far the next client may stray.
        """
        m = self.model
        if any(self.varies[:level]) and not m.has_variances:
            return None
        if level == 0:
            return np.zeros((1, pack(m.root_cov).size))
        D, more = m.D_client, (np.zeros(1),) * (len(m.D_levels) + 1)
        if m.uncertainty is not None:
            D, more = D + m.uncertainty.more[0], m.uncertainty.more
        if len(D) > 1 and level > 1:
            sizes = np.bincount(self.parents[0], minlength=len(D))
            D = np.average(D, axis=0, weights=sizes)[None]
        for upper, extra in zip(m.D_levels[: level - 1], more[1:], strict=False):
            D = D + upper + extra
        return pack(D)
