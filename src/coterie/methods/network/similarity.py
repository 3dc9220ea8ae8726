"""Seed 003, IV-A: the similarity network, from clients' points in the data, feature or model space.

Clients send short embeddings, never rows; their nearest neighbours are tied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from coterie.errors import CoterieError, nearest
from coterie.federation import Federation
from coterie.methods.estimates import GroupedProblem
from coterie.methods.network.spaces import data, feature, given, model
from coterie.numerics.kernels import Floats
from coterie.relations.neighbours import Distance
from coterie.relations.network import Network

NEIGHBOURS = 5


@dataclass(frozen=True)
class Similarity:
    """How clients are compared, and which of them are tied.

    Attributes
    ----------
    space : {"model", "data", "feature", "covariates"}, default "model"
    k : int or "auto", default "auto"
        Neighbours of a client; auto takes 5, or all others where they are fewer.
    weighted, mutual : bool, default False
    connected : bool, default True
        As for :meth:`coterie.relations.network.Network.nearest`.
    distance : str, optional
        Of models: coefficients (default) or predictions. Of features: log-euclidean (default), frobenius, bures, mean.
    features : int, default 256
        Numbers a client sends in the data space.
    width : number, optional
        Of the kernel in the data space, in standard units.
    response : bool, optional
        Whether the response counts as a column; by default in the data space only.
    means : bool, default False
        Whether means count beside covariances in the feature space.
    prior : number, optional
        Rows that hold a client's covariance or model at what all have; by default about as many as columns.
    probes : int or (M, d), default 128
        Where predictions are compared.
    models : (n, d), optional
        Local models of any kind, for the model space.
    covariates : (n, q), optional
        The clients' own points, for the space of covariates, in any units.
    seed : int, default 0
        Of random features, probes and approximate search.
    """

    space: str = "model"
    k: Any = "auto"
    weighted: bool = False
    mutual: bool = False
    connected: bool = True
    distance: Any = None
    features: int = 256
    width: Any = None
    response: Any = None
    means: bool = False
    prior: Any = None
    probes: Any = 128
    models: Any = None
    covariates: Any = None
    seed: int = 0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Similarity:
        """From a user's mapping; a CoterieError for a name or a value that cannot be."""
        names = [f.name for f in fields(cls)]
        for name in options:
            if name not in names:
                hint = nearest(name, names)
                raise CoterieError(f"A similarity network has no option {name!r}.{hint} There are {', '.join(names)}.")
        return cls(**options)

    def __post_init__(self) -> None:
        given.check(self)

    def points(self, fed: Federation, problem: GroupedProblem | None = None) -> Floats:
        """Clients' points (n, q), in the order of ``fed.clients``, whose Euclidean distances say who is alike."""
        return self._points(fed, problem)[0]

    def network(self, fed: Federation, problem: GroupedProblem | None = None) -> Network:
        """The network of the clients, in the order of ``fed.clients``."""
        n = len(fed.clients)
        if n == 1 and self.k == "auto":
            return Network.of(1, [])
        k = min(NEIGHBOURS, n - 1) if self.k == "auto" else self.k
        points, distance = self._points(fed, problem)
        return Network.nearest(
            points,
            k,
            weighted=self.weighted,
            mutual=self.mutual,
            connected=self.connected,
            distance=distance,
            seed=self.seed,
        )

    def _points(self, fed: Federation, problem: GroupedProblem | None) -> tuple[Floats, Distance | None]:
        n = len(fed.clients)
        if self.space == "covariates":
            return given.covariates(self.covariates, n), None
        if self.space == "data":
            response = self.response is None or bool(self.response)
            return data.points(fed, self.features, response, self.width, self.seed), None
        if self.space == "feature":
            clients = feature.gaussians(fed, self.prior, bool(self.response))
            points = clients.points(self.distance or "log-euclidean", self.means)
            return points, clients.bures(self.means) if self.distance == "bures" else None
        models = None if self.models is None else given.table("models", self.models, n)
        if problem is None:
            if models is None or self.distance == "predictions":
                raise CoterieError("Clients without a table have no models to compare yet: give their models (n, d).")
            return models, None
        distance = self.distance or "coefficients"
        probes = self.probes if np.ndim(self.probes) == 0 else given.table("probes", self.probes)
        return model.points(fed, problem, distance, self.prior, probes, models, self.seed), None


def points(fed: Federation, space: str = "model", *, problem: GroupedProblem | None = None, **options: Any) -> Floats:
    """Clients' points (n, q): see :class:`Similarity` for spaces and options.

    Parameters
    ----------
    fed : Federation
    space : {"model", "data", "feature", "covariates"}
    problem : GroupedProblem, optional
        What local models of tables need.
    """
    return Similarity.of({"space": space, **options}).points(fed, problem)


def similarity_network(
    fed: Federation, space: str = "model", *, problem: GroupedProblem | None = None, **options: Any
) -> Network:
    """The similarity network of a federation's clients: see :class:`Similarity` for spaces and options."""
    return Similarity.of({"space": space, **options}).network(fed, problem)
