"""Zhao, Liu, Jiang, He: A fast training framework for federated model with personalized component, Algorithms 1 to 6.

Clients send stochastic gradients (Algorithm 1), or what a codec makes of them (Algorithm 3); the server moves the
shared x along their mean, and the personal Z by a proximal step that pulls neighbours together (Algorithm 6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.methods.networks.gradient_exchange import GradientExchange
from coterie.methods.networks.options import Norm
from coterie.methods.stepwise import FAR, Stepwise
from coterie.numerics.arrays import Floats
from coterie.numerics.network.prox import Proximal, network_prox, smoothed
from coterie.options import Option, Schedule, check, declared
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout

State = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SimilarityNetwork(Stepwise):
    """Objective (1), (2) by Algorithm 6, with the paper's symbols.

    f_n is a client's loss divided by the weight of its rows, and counts by that weight (the paper's 1/N for clients of
    one size), so that lambda = infinity is the pooled model.
    """

    network: Annotated[Network, Option("G: who is tied to whom, and how strongly.")]
    layout: Annotated[Layout, Option("M and N.")]
    lam: Annotated[float, Option("lambda.", low=0.0, remedy="For ties without end, fit the pooled model.")]
    eta: Annotated[float | Callable[[int], float], Option("Step size of x.", above=0.0)]
    own: Annotated[Schedule, Option("Step size of Z; by default eta, as printed.", above=0.0, each="client")] = None
    p: Norm = 2
    phases: Annotated[
        tuple[int, int] | None, Option("IV-C: so many steps on (5), x by given Z, then so many on (6), in turn.", low=1)
    ] = None
    # A weak prior, where outcomes may be separated
    held: Annotated[Any, Option("Curvature by which z_n is held at 0.", low=0.0, each="client")] = 0.0
    prior: Annotated[Any, Option("What holds models of clients alone, a ``networks.objective.Prior``.")] = None
    unit: Annotated[Any, Option("Clients hold ``unit * (M x + N z_n)``.", above=0.0, each="parameter")] = 1.0
    squared: Annotated[bool, Option("Whether ties are halves of squared norms, whatever p.")] = False
    gap: Annotated[float, Option("Relative duality gap of the proximal step.", above=0.0, high=1.0)] = 1e-8
    untied: Annotated[Any, Option("Which columns of z_n no tie pulls, a mask (d2,).")] = None
    transport: Annotated[GradientExchange, Option("How gradients and models travel.")] = field(
        default_factory=GradientExchange
    )

    def __post_init__(self) -> None:
        check(self)
        for name, size in (("own", self.network.n), ("held", self.network.n), ("unit", self.layout.d)):
            if not callable(value := getattr(self, name)) and value is not None:
                declared(SimilarityNetwork)[name].at(value, 0, size)

    def init(self, fed: Federation, x: Floats | None = None, Z: Floats | None = None) -> State:
        """The state before the first step, at x (d1,) and Z (n, d2), zero by default."""
        n, layout = self.network.n, self.layout
        if len(fed.clients) != n:
            raise CoterieError(f"The network has {n:,} clients and the federation {len(fed.clients):,}: give it these.")
        x = np.zeros(layout.d1) if x is None else np.array(x, dtype=np.float64)
        Z = np.zeros((n, layout.d2)) if Z is None else np.array(Z, dtype=np.float64)
        for name, at, shape in (("x", x, (layout.d1,)), ("Z", Z, (n, layout.d2))):
            if at.shape != shape or not np.isfinite(at).all():
                raise CoterieError(f"{name} must be finite numbers of shape {shape}, not {at.shape}.")
        dual = np.zeros((len(self.network.edges), Z[:, self._tied].shape[1]))
        return {"t": 0, "status": "running", "x": x, "Z": Z, "dual": dual} | self.transport.init(fed, layout.d)

    def step(self, fed: Federation, state: State) -> State:
        """One iteration of Algorithm 6: line 3 collects, lines 4 and 5 update, line 6 delivers with the next one."""
        t, x, Z = state["t"], state["x"], state["Z"]
        received = self.transport.exchange(fed, state, self.unit * self.layout.theta(x, Z))
        state = received.state
        if received.diverged:
            return state | {"status": f"diverged by step {t + 1}"}
        if (state["quarantined"] > 0).all():
            return state | {"status": f"ended by step {t + 1}: every client is quarantined"}
        if received.unanswered:
            return state | {"t": t + 1}
        G = received.share[:, None] * received.g * self.unit
        if self.prior is not None:
            G = G + self.prior.of_models(self.layout.theta(x, Z))[1]
        moves_x, moves_z = self._moves(t)
        x = x - self._at("eta", t) * self.layout.to_shared(G.sum(axis=0)) if moves_x else x
        if moves_z:
            Z, state = self._pull(state, G, t)
        if not (np.abs(x) < FAR).all() or not (np.abs(Z) < FAR).all():
            return state | {"status": f"diverged by step {t + 1}"}
        return state | {"t": t + 1, "x": x, "Z": Z}

    def _moves(self, t: int) -> tuple[bool, bool]:
        if self.phases is None:
            return True, True
        first = t % sum(self.phases) < self.phases[0]
        return first, not first

    def _at(self, name: str, t: int) -> Any:
        return declared(SimilarityNetwork)[name].at(getattr(self, name), t, 1 if name == "eta" else self.network.n)

    def _pull(self, state: State, G: Floats, t: int) -> tuple[Floats, State]:
        """``argmin <N'G, Z> + lambda ||ZQ||_{1,p} + sum_n |z_n - z_n,t|^2 / (2 own_n)`` (Algorithm 5's problem)."""
        Z, own = state["Z"], self._at("eta" if self.own is None else "own", t)
        V = Z - own.reshape(-1, 1) * (self.layout.to_personal(G) + np.reshape(self.held, (-1, 1)) * Z)
        if not (np.abs(V) < FAR).all() or self.lam == 0.0 or not len(self.network.edges):
            return V, state
        weight, metric = self.lam * self.network.weight, None
        if own.ndim:
            metric = 1.0 / own
        else:
            weight = weight * float(own)
        tied = self._tied
        if self.squared:
            V[:, tied] = smoothed(V[:, tied], self.network.edges, weight, metric)
            return V, state
        start = Proximal(Z[:, tied], state["dual"], np.inf, 0)
        proximal = network_prox(V[:, tied], self.network.edges, weight, self.p, self.gap, metric=metric, start=start)
        V[:, tied] = proximal.Z
        return V, state | {"dual": proximal.dual}

    @property
    def _tied(self) -> Any:
        """Columns of Z that ties pull."""
        return slice(None) if self.untied is None else ~self.untied
