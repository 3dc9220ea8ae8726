"""What may be asked of a similarity network (paper 003, IV-A), which is learned by default, and of a run on it.

Clients send short embeddings, never rows, in the data, feature or model space; their nearest neighbours are tied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Final, Literal

import numpy as np

from coterie.codecs import DEFAULT, DEFAULT_FEEDBACK, DEFAULT_ORDER, by_name, codec_option
from coterie.codecs.compression import FEEDBACKS, ORDERS
from coterie.errors import CoterieError, listed
from coterie.federation import Federation
from coterie.methods.networks.client_embeddings import (
    FEATURE_DISTANCES,
    MODEL_DISTANCES,
    data_points,
    gaussians,
    model_points,
)
from coterie.methods.networks.gradient_exchange import GradientExchange
from coterie.methods.problem_and_estimates import GroupedProblem
from coterie.numerics.arrays import Floats
from coterie.options import Checked, Declared, Option, check, declared, need_names, of
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
        models = None if self.models is None else _table("models", self.models, n)
        if problem is None:
            if models is None or self.distance == "predictions":
                raise CoterieError("Clients without a table have no models to compare yet: give their models (n, d).")
            return models, None
        distance = self.distance or "coefficients"
        probes = self.probes if np.ndim(self.probes) == 0 else _table("probes", self.probes)
        return model_points(fed, problem, distance, self.prior, probes, models, self.seed), None


def _table(name: str, values: Any, n: int | None = None) -> Floats:
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
    table = _table("covariates", values, n)
    most = np.abs(table).max(axis=0)
    table = table / np.where(most > 0.0, most, 1.0)  # squares neither overflow nor vanish
    centred = table - table.mean(axis=0)
    sd = np.sqrt(np.mean(centred**2, axis=0))
    vary = sd > 1e-12 * np.abs(table).max(axis=0)
    if n > 1 and not vary.any():
        raise CoterieError("All clients have the same covariates: give some that differ.")
    return np.asarray(centred[:, vary] / sd[vary]) if vary.any() else centred


HELD_OUT: Final = "held-out"
MOST = 10**9  # steps and rows at most


def norm(p: Any) -> float:
    """A norm of differences: 1, 2 or infinity."""
    if isinstance(p, (bool, np.bool_)) or p not in (1, 2, np.inf, "inf"):
        raise ValueError("no norm")
    return float(p)


Norm = Annotated[
    Any, Option("Norm of differences: by 2 clients merge whole, by 1 each coefficient.", what="1, 2 or inf", read=norm)
]


@dataclass(frozen=True)
class Asked(Checked):
    """The network and its penalty."""

    similarity: Similarity = field(default_factory=Similarity)
    edges: Annotated[Any, Option("The user's own ties, a ``Network``.")] = None
    lam: Annotated[
        float | Literal["held-out"],
        Option(
            "Strength of the ties, 0 to inf, in standard units, or chosen by held-out rows.", low=0.0, infinite=True
        ),
    ] = HELD_OUT
    p: Norm = 2
    solver: Annotated[
        Literal["newton", "admm"],
        Option("Proximal Newton, by gradients and Hessians in few exchanges, or consensus ADMM, by d numbers in many."),
    ] = "newton"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Asked:
        """From a user's mapping, whose other names are those of ``Similarity``; a CoterieError where it cannot be."""
        alike = {f.name for f in fields(Similarity)}
        own = list(declared(cls))
        need_names(_NETWORK, given, (*own, *alike))
        learned = {name: value for name, value in given.items() if name in alike}
        if learned.get("covariates") is not None:
            learned.setdefault("space", "covariates")
        if learned and given.get("edges") is not None:
            raise CoterieError(f"The network has edges of its own: leave {', '.join(learned)} out, or edges.")
        asked = of(cls, {name: value for name, value in given.items() if name in own}, _NETWORK)
        return replace(asked, similarity=of(Similarity, learned, _NETWORK))


_NETWORK = "A similarity network"
USUAL = 500  # steps of a run
MODELS = "float16"  # codec of models, where updates travel in one


@dataclass(frozen=True)
class Run:
    """A run; where nothing of it is asked for, the objective is minimised exactly.

    A decreasing schedule is taken where gradients are of some rows, or of some clients, only; ``codecs.DEFAULT`` is the
    codec that needs the fewest bytes.
    """

    steps: Annotated[
        int | None,
        Option("500 at most where anything else is asked for, until 0.01% of the decrease is left.", low=1, high=MOST),
    ] = None
    eta: Annotated[
        float | Literal["auto"], Option("Step size, relative to what curvature allows; auto takes 1.", above=0.0)
    ] = "auto"
    schedule: Annotated[Literal["auto", "constant", "decreasing"], Option("Of the step size.")] = "auto"
    batch: Annotated[int, Option("Rows of a gradient, drawn with replacement; 0 takes all.", low=0, high=MOST)] = 0
    phases: Annotated[
        tuple[int, int] | None,
        Option("IV-C: so many steps on x, then so many on Z; by default both at once.", low=1, high=MOST),
    ] = None
    codec: Annotated[str | None, codec_option("Of updates: see ``coterie.codecs.by_name``; or auto.")] = "none"
    bytes_per_update: Annotated[
        int | None, Option("The paper's codec, with as much compression as this needs.", low=1, high=MOST)
    ] = None
    feedback: Annotated[
        str, Option("What happens to what a codec loses; auto: ef if it is biased.", choices=("auto", *FEEDBACKS))
    ] = "auto"
    order: Annotated[
        str, Option("In which coordinates travel; auto: magnitude if codecs go by runs.", choices=("auto", *ORDERS))
    ] = "auto"
    down: Annotated[str | None, codec_option("Of models; float16 where updates travel in one, else none.")] = None
    participation: Annotated[float, Option("How often a client takes part.", above=0.0, high=1.0)] = 1.0
    seed: Annotated[int, Option("Of rows, codecs and who takes part.", low=0, high=MOST)] = 0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Run:
        """From a user's mapping; a CoterieError for a name or a value that cannot be."""
        return of(cls, given, "A run on a similarity network")

    def __post_init__(self) -> None:
        check(self)
        if self.bytes_per_update is not None and self.codec != "none":
            raise CoterieError("bytes_per_update is a budget for the paper's codec: leave codec out.")
        _ = self.transport  # whose codecs are looked up

    @property
    def exact(self) -> bool:
        """Whether nothing is asked for that only a run has."""
        return self == Run(seed=self.seed)

    @property
    def taken(self) -> int:
        """Steps of a run."""
        return USUAL if self.steps is None else int(self.steps)

    @property
    def transport(self) -> GradientExchange:
        """How updates and models travel."""
        up = (self.codec or "none") if self.bytes_per_update is None else f"tv:bytes={self.bytes_per_update}"
        up = DEFAULT if up == "auto" else up
        order = self.order
        if order == "auto":
            order = DEFAULT_ORDER if up.startswith("tv") else "natural"
        down = self.down or ("none" if up == "none" else MODELS)
        feedback = self.feedback
        if feedback == "auto":
            feedback = "none" if up == "none" or by_name(up).unbiased else DEFAULT_FEEDBACK
        taking: dict[str, Any] = {"participation": float(self.participation), "seed": int(self.seed)}
        return GradientExchange(up, down, feedback, order, batch=int(self.batch), **taking)

    def step(self, t: int) -> float:
        """The step at t, relative to the first: constant, or ``1 / (1 + 10 t / T)``."""
        sampled = self.batch > 0 or self.participation < 1.0
        decreasing = self.schedule == "decreasing" or (self.schedule == "auto" and sampled)
        return 1.0 / (1.0 + 10.0 * t / self.taken) if decreasing else 1.0
