"""Who is alike (paper 003, IV-A): how clients are compared, and the network that ties each to its nearest.

Clients send short embeddings, never rows, in the data, feature or model space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from coterie.errors import CoterieError, listed
from coterie.federation import Federation
from coterie.methods.networks.client_embeddings import (
    FEATURE_DISTANCES,
    MODEL_DISTANCES,
    data_points,
    gaussians,
    model_points,
)
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.numerics.arrays import Floats
from coterie.options import Declared, Option, check, of
from coterie.relations.neighbours import Distance
from coterie.relations.network import Network

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
NEIGHBOURS, MILLION = 5, 10**6


def even(value: int) -> int:
    """The same; a CoterieError for an odd number of features."""
    if value % 2:
        raise CoterieError(f"features must be even, a cosine and a sine of each frequency, not {value}.")
    return value


def probing(value: Any) -> Any:
    """How many probes, or which: a table."""
    return value if np.ndim(value) == 2 else _PROBES.read(value)


_PROBES = Declared("probes", int, Option(low=1, high=MILLION, what=f"a table, or a whole number from 1 to {MILLION:,}"))


@dataclass(frozen=True)
class Similarity:
    """How clients are compared, and which of them are tied."""

    space: Annotated[str, Option("Where clients are compared.", choices=SPACES)] = "model"
    k: Annotated[
        int | Literal["auto"], Option("Neighbours of a client; auto takes 5, or all if fewer.", low=1, high=MILLION)
    ] = "auto"
    weighted: Annotated[bool, Option("Whether nearer neighbours are tied more strongly.")] = False
    mutual: Annotated[bool, Option("Whether both must be neighbours of each other.")] = False
    connected: Annotated[bool, Option("Whether parts of the network are joined.")] = True
    distance: Annotated[
        str | None,
        Option("Of models: coefficients or predictions. Of features: log-euclidean, frobenius, bures or mean."),
    ] = None
    features: Annotated[int, Option("Numbers a client sends in the data space.", low=2, high=MILLION, read=even)] = 256
    width: Annotated[float | None, Option("Of the kernel in the data space, in standard units.", above=0.0)] = None
    response: Annotated[
        bool | None, Option("Whether the response counts as a column; by default in the data space only.")
    ] = None
    means: Annotated[bool, Option("Whether means count beside covariances in the feature space.")] = False
    prior: Annotated[
        float | None, Option("Rows that hold a client's covariance or model at what all have.", above=0.0)
    ] = None
    probes: Annotated[Any, Option("Where predictions are compared: how many rows, or which (M, d).", read=probing)] = (
        128
    )
    models: Annotated[Any, Option("Local models of any kind (n, d), for the model space.")] = None
    covariates: Annotated[Any, Option("The clients' own points (n, q), in any units.")] = None
    seed: Annotated[int, Option("Of random features, probes and approximate search.", low=0, high=MILLION)] = 0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Similarity:
        """From a user's mapping; a CoterieError for a name or a value that cannot be."""
        return of(cls, options, "A similarity network")

    def __post_init__(self) -> None:
        check(self)
        for name, spaces in ONLY_IN.items():
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            unused = value is default or (np.ndim(value) == 0 and value == default)
            if not unused and self.space not in spaces:
                raise CoterieError(f"{name} is an option of the space {' or '.join(spaces)}, not of {self.space}.")
        choices = {"model": MODEL_DISTANCES, "feature": FEATURE_DISTANCES}.get(self.space, ())
        if self.distance is not None and self.distance not in choices:
            raise CoterieError(f"distance must be {' or '.join(choices)} in space {self.space}, not {self.distance!r}.")
        if self.space == "covariates" and self.covariates is None:
            raise CoterieError("The space of covariates needs covariates, a table with a row for each client.")

    def points(self, fed: Federation, problem: GroupedProblem | None = None) -> Floats:
        """Clients' points (n, q), in the order of ``fed.clients``, whose Euclidean distances say who is alike."""
        return self._points(fed, problem)[0]

    def network(self, fed: Federation, problem: GroupedProblem | None = None, **net: Any) -> Network:
        """The network of the clients, in the order of ``fed.clients``.

        Of a ``net``, its model ``w`` (d,) and its ``personal`` layers, the feature space has what enters these.
        """
        n = len(fed.clients)
        if n == 1 and self.k == "auto":
            return Network.of(1, [])
        k = min(NEIGHBOURS, n - 1) if self.k == "auto" else self.k
        points, distance = self._points(fed, problem, **net)
        how = {name: getattr(self, name) for name in ("weighted", "mutual", "connected", "seed")}
        return Network.nearest(points, k, distance=distance, **how)

    def _points(self, fed: Federation, problem: GroupedProblem | None, **net: Any) -> tuple[Floats, Distance | None]:
        n = len(fed.clients)
        if self.space == "covariates":
            return _covariates(self.covariates, n), None
        if self.space == "data":
            response = self.response is None or bool(self.response)
            return data_points(fed, self.features, response, self.width, self.seed), None
        if self.space == "feature":
            clients = gaussians(fed, self.prior, bool(self.response), net)
            points = clients.points(self.distance or "log-euclidean", self.means)
            return points, clients.bures(self.means) if self.distance == "bures" else None
        models = None if self.models is None else _table_of_numbers("models", self.models, n)
        if problem is None:
            if models is None or self.distance == "predictions":
                raise CoterieError("Clients without a table have no models to compare yet: give their models (n, d).")
            return models, None
        distance = self.distance or "coefficients"
        probes = self.probes if np.ndim(self.probes) == 0 else _table_of_numbers("probes", self.probes)
        return model_points(fed, problem, distance, self.prior, probes, models, self.seed), None


def _table_of_numbers(name: str, values: Any, n: int | None = None) -> Floats:
    try:
        table = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as e:
        raise CoterieError(f"{name} must be a table of numbers.") from e
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or not table.shape[1] or (n is not None and len(table) != n):
        rows = "rows" if n is None else f"one row for each of {n} clients"
        raise CoterieError(f"{name} must be a table with {rows}, not of shape {np.shape(values)}.")
    wrong = np.flatnonzero(~np.isfinite(table).all(axis=1))
    if len(wrong):
        raise CoterieError(f"{name} of rows {listed(wrong)} are not finite numbers: fill them in or leave them out.")
    return table


def _covariates(values: Any, n: int) -> Floats:
    """Covariates of clients in standard units; those that are the same for all are left out."""
    table = _table_of_numbers("covariates", values, n)
    most = np.abs(table).max(axis=0)
    table = table / np.where(most > 0.0, most, 1.0)  # squares neither overflow nor vanish
    centred = table - table.mean(axis=0)
    sd = np.sqrt(np.mean(centred**2, axis=0))
    vary = sd > 1e-12 * np.abs(table).max(axis=0)
    if n > 1 and not vary.any():
        raise CoterieError("All clients have the same covariates: give some that differ.")
    return np.asarray(centred[:, vary] / sd[vary]) if vary.any() else centred
