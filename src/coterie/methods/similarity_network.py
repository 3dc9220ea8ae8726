"""Zhao, Liu, Jiang, He: A fast training framework for federated model with personalized component, Algorithms 1 to 6.

Clients send stochastic gradients (Algorithm 1), or what a codec makes of them (Algorithm 3); the server moves the
shared x along their mean, and the personal Z by a proximal step that pulls neighbours together (Algorithm 6).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation
from coterie.methods.checks import need_numbers, need_shape
from coterie.methods.network.options import Norm
from coterie.methods.network.transport import FAR, Transport
from coterie.methods.stepwise import Stepwise
from coterie.numerics.arrays import Floats
from coterie.numerics.network.prox import Proximal, network_prox
from coterie.options import Option, check
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout

State = dict[str, Any]
Schedule = Any
"""A number, or ``f(t)`` that gives one; for Z also (n,) numbers."""


@dataclass(frozen=True, kw_only=True)
class SimilarityNetwork(Stepwise):
    """Objective (1), (2) by Algorithm 6, with the paper's symbols.

    Attributes
    ----------
    network : Network
        G: who is tied to whom, and how strongly.
    layout : Layout
        M and N.
    eta : number or callable
        Step size of x.
    own : number, (n,) or callable, optional
        Step size of Z, also one for each client; by default eta, as printed.
    held : number or (n,), default 0
        Curvature by which z_n is held at 0: a weak prior, where outcomes may be separated.
    unit : number or (d,), default 1
        What clients hold is ``unit * (M x + N z_n)``.

    Notes
    -----
    f_n is a client's loss divided by the weight of its rows, and counts by that weight (the paper's 1/N for clients of
    one size), so that lambda = infinity is the pooled model.
    """

    network: Annotated[Network, Option("G.")]
    layout: Annotated[Layout, Option("M and N.")]
    lam: Annotated[float, Option("lambda.", low=0.0, remedy="For ties without end, fit the pooled model.")]
    eta: Schedule
    own: Schedule = None
    p: Norm = 2
    phases: Annotated[
        tuple[int, int] | None, Option("IV-C: so many steps on (5), x by given Z, then so many on (6), in turn.", low=1)
    ] = None
    held: Any = 0.0
    unit: Any = 1.0
    gap: Annotated[float, Option("Relative duality gap of the proximal step.", above=0.0, high=1.0)] = 1e-8
    transport: Annotated[Transport, Option("How gradients and models travel.")] = field(default_factory=Transport)

    def __post_init__(self) -> None:
        check(self)
        n, d = self.network.n, self.layout.d
        for name, size, least in (("eta", 1, None), ("own", n, None), ("held", n, 0.0), ("unit", d, None)):
            value = getattr(self, name)
            if not callable(value) and not (value is None and name == "own"):
                need_numbers(name, value, size, least)

    def init(self, fed: Federation, x: Floats | None = None, Z: Floats | None = None) -> State:
        """The state before the first step, at x (d1,) and Z (n, d2), zero by default."""
        n, layout = self.network.n, self.layout
        if len(fed.clients) != n:
            raise CoterieError(
                f"The network has {n:,} clients and the federation {len(fed.clients):,}: make it of these."
            )
        x = np.zeros(layout.d1) if x is None else np.array(x, dtype=np.float64)
        Z = np.zeros((n, layout.d2)) if Z is None else np.array(Z, dtype=np.float64)
        need_shape("x", x, (layout.d1,))
        need_shape("Z", Z, (n, layout.d2))
        dual = np.zeros((len(self.network.edges), layout.d2))
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
        if not callable(value := getattr(self, name)):
            return value
        need_numbers(f"{name}({t})", value := value(t), 1 if name == "eta" else self.network.n)
        return value

    def _pull(self, state: State, G: Floats, t: int) -> tuple[Floats, State]:
        """``argmin <N'G, Z> + lambda ||ZQ||_{1,p} + sum_n |z_n - z_n,t|^2 / (2 own_n)`` (Algorithm 5's problem)."""
        Z, own = state["Z"], np.asarray(self._at("eta" if self.own is None else "own", t), dtype=np.float64)
        V = Z - own.reshape(-1, 1) * (self.layout.to_personal(G) + np.reshape(self.held, (-1, 1)) * Z)
        if not (np.abs(V) < FAR).all() or self.lam == 0.0 or not len(self.network.edges):
            return V, state
        weight, metric = self.lam * self.network.weight, None
        if own.ndim:
            metric = 1.0 / own
        else:
            weight = weight * float(own)
        start = Proximal(Z, state["dual"], np.inf, 0)
        proximal = network_prox(V, self.network.edges, weight, self.p, self.gap, metric=metric, start=start)
        return proximal.Z, state | {"dual": proximal.dual}
