"""Seed 003, IV-A: the similarity network, from clients' points in the data, feature or model space.

Clients send short embeddings, never rows; their nearest neighbours are tied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from coterie.errors import CoterieError, listed, nearest
from coterie.federation import Federation
from coterie.methods.estimates import GroupedProblem
from coterie.methods.network.spaces import (
    FEATURE_DISTANCES,
    MODEL_DISTANCES,
    data_points,
    gaussians,
    model_points,
)
from coterie.numerics.kernels import Floats
from coterie.relations.neighbours import Distance
from coterie.relations.network import Network

LARGEST = 10**6
SPACES = ("model", "data", "feature", "covariates")
ONLY_IN = {
    **dict.fromkeys(("features", "width"), ("data",)),
    "response": ("data", "feature"),
    "means": ("feature",),
    **dict.fromkeys(("probes", "models"), ("model",)),
    **dict.fromkeys(("distance", "prior"), ("model", "feature")),
    "covariates": ("covariates",),
}
"""Options that one space, or two, have."""
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
        _check(self)

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
            return _covariates(self.covariates, n), None
        if self.space == "data":
            response = self.response is None or bool(self.response)
            return data_points(fed, self.features, response, self.width, self.seed), None
        if self.space == "feature":
            clients = gaussians(fed, self.prior, bool(self.response))
            points = clients.points(self.distance or "log-euclidean", self.means)
            return points, clients.bures(self.means) if self.distance == "bures" else None
        models = None if self.models is None else _table("models", self.models, n)
        if problem is None:
            if models is None or self.distance == "predictions":
                raise CoterieError("Clients without a table have no models to compare yet: give their models (n, d).")
            return models, None
        distance = self.distance or "coefficients"
        probes = self.probes if np.ndim(self.probes) == 0 else _table("probes", self.probes)
        return model_points(fed, problem, distance, self.prior, probes, models, self.seed), None


def _check(asked: Similarity) -> None:
    """A CoterieError for a value that cannot be, or an option that the space would ignore."""
    if not (isinstance(asked.space, str) and asked.space in SPACES):
        raise CoterieError(f"space must be {' or '.join(SPACES)}, not {asked.space!r}.{nearest(asked.space, SPACES)}")
    for name, spaces in ONLY_IN.items():
        value, default = getattr(asked, name), type(asked).__dataclass_fields__[name].default
        unused = value is default or (np.ndim(value) == 0 and value == default)
        if not unused and asked.space not in spaces:
            raise CoterieError(f"{name} is an option of the space {' or '.join(spaces)}, not of {asked.space}.")
    for name in ("weighted", "mutual", "connected", "means"):
        if not isinstance(getattr(asked, name), (bool, np.bool_)):
            raise CoterieError(f"{name} must be True or False, not {getattr(asked, name)!r}.")
    if asked.response is not None and not isinstance(asked.response, (bool, np.bool_)):
        raise CoterieError(f"response must be True or False, not {asked.response!r}.")
    for name, least in (("k", 1), ("features", 2), ("seed", 0), ("probes", 1)):
        value = getattr(asked, name)
        if (name == "k" and isinstance(value, str) and value == "auto") or (name == "probes" and np.ndim(value) == 2):
            continue
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not (whole and least <= value <= LARGEST):
            other = {"k": "auto, or ", "probes": "a table, or "}.get(name, "")
            raise CoterieError(f"{name} must be {other}a whole number from {least} to {LARGEST:,}, not {value!r}.")
    if asked.features % 2:
        raise CoterieError(f"features must be even, a cosine and a sine of each frequency, not {asked.features}.")
    choices = {"model": MODEL_DISTANCES, "feature": FEATURE_DISTANCES}.get(asked.space, ())
    if asked.distance is not None and not (isinstance(asked.distance, str) and asked.distance in choices):
        raise CoterieError(
            f"distance must be {' or '.join(choices)} in the space {asked.space}, not {asked.distance!r}."
        )
    for name in ("width", "prior"):
        value = getattr(asked, name)
        number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        if value is not None and not (number and 0.0 < value < np.inf):
            raise CoterieError(f"{name} must be a positive finite number, not {value!r}.")
    if asked.space == "covariates" and asked.covariates is None:
        raise CoterieError("The space of covariates needs them: give covariates, a table with a row for each client.")


def _table(name: str, values: Any, n: int | None = None) -> Floats:
    """A user's numbers (n, q), finite."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise CoterieError(f"{name} must be a table of numbers.") from e
    found = found[:, None] if found.ndim == 1 else found
    if found.ndim != 2 or not found.shape[1] or (n is not None and len(found) != n):
        rows = "rows" if n is None else f"one row for each of {n} clients"
        raise CoterieError(f"{name} must be a table with {rows}, not of shape {np.shape(values)}.")
    wrong = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(wrong):
        raise CoterieError(f"{name} of rows {listed(wrong)} are not finite numbers: fill them in or leave them out.")
    return found


def _covariates(values: Any, n: int) -> Floats:
    """Covariates of clients in standard units; those that are the same for all are left out."""
    found = _table("covariates", values, n)
    most = np.abs(found).max(axis=0)
    found = found / np.where(most > 0.0, most, 1.0)  # squares neither overflow nor vanish
    centred = found - found.mean(axis=0)
    sd = np.sqrt(np.mean(centred**2, axis=0))
    vary = sd > 1e-12 * np.abs(found).max(axis=0)
    if n > 1 and not vary.any():
        raise CoterieError("All clients have the same covariates: give some that differ.")
    return np.asarray(centred[:, vary] / sd[vary]) if vary.any() else centred
