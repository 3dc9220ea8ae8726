"""Linear speedup in personalized collaborative learning (2022): weighted averaging (WGA) and bias correction (BC).

Algorithm 1, for M main clients 0 at once: each asks its collaborators for gradients at its own x, and steps along

    Algorithm 2:  g = (1 - alpha) g_0 + alpha g_avg                      g_avg = sum_k tau_k g_k(x)
    Algorithm 3:  g = (1 - alpha) g_0 + alpha (g_avg - c),  b = g_avg - g_0,  c <- (1 - beta) c + beta b
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, PerRow, Site, work
from coterie.methods.aggregation.quarantine_and_memory import Guarded, one_by_one
from coterie.methods.aggregation.rules import Aggregator, State
from coterie.methods.collaboration.collaborators import Collaborators, require_columns
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.methods.collaboration.optimisers import SGD, Optimiser
from coterie.methods.stepwise import FAR, Stepwise
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats
from coterie.objectives.gradient_steps import Draws
from coterie.objectives.mean_loss import path
from coterie.options import Checked, Option, Schedule, declared


@work
def weighted_gradient(
    site: Site, theta: Floats, t: int, local: int, batch: int, stream: str, weight: Floats | None = None, **moving: Any
) -> State:
    """``tau_k g_k(x_t)``: the mean gradient on local steps from theta, NaN where an objective gives something else."""
    m, d = theta.shape
    draws = Draws(keyed_random.starts(site.seed, stream, site.ids), np.full(m, t * local, dtype=np.int64), batch)
    still, g = {"shift": np.zeros((m, d)), "P": np.empty((0, 0)), "eta": np.zeros(m)}, np.full((m, d), np.nan)
    if site.objective.dim == d:
        site.count(m * local)
        sent = np.asarray(path(site.objective, theta, steps=local, draws=draws, **(still | moving)))
        g = sent.reshape(m, d) if sent.dtype.kind in "fiu" and sent.size == m * d else g
    if weight is None:
        return {"g": one_by_one(g)}
    kind = getattr(site.objective, "dtype", np.float64)  # alike at all sites, whatever type one's gradients have
    return {"g": weight.astype(kind)[:, None] * g.astype(kind, copy=False), "weight": weight}


@dataclass(frozen=True, kw_only=True)
class WeightedAveraging(Checked, Stepwise):
    """Algorithm 2; x, g and c are in the units of the metric."""

    pairs: Collaborators  # main clients, their collaborators and weights tau
    metric: Metric
    alpha: Annotated[Schedule, Option("Weight of the collaborators.", low=0.0, high=1.0, each="main client")]
    eta: Annotated[Schedule, Option("Step size.", low=0.0, each="main client")]
    batch: int = 1  # rows of a gradient, drawn with replacement; 0 takes all
    local: int = 1  # local steps of everybody between two exchanges (section 7)
    # By which main clients are held at the metric's origin: see ``Metric.prior``
    prior_curvature: Annotated[Schedule, Option("Of a prior.", low=0.0, each="main client")] = 0.0
    optimiser: Optimiser = field(default_factory=SGD)
    aggregator: Aggregator | None = None
    participation: float = 1.0
    remember: bool = False
    seed: int = 0
    listens: Any = 1.0  # (d,), 0 in coordinates of the metric in which collaborators have no say, 1 in the others

    def at(self, name: str, t: int) -> Floats:
        """An option's numbers (M,) at step t."""
        M = len(self.pairs.main)
        return np.broadcast_to(declared(type(self))[name].at(getattr(self, name), t, M), (M,))

    def init(self, fed: Federation, x: Floats | None = None) -> State:
        """The state before the first step, at x (M, d), by default the metric's origin."""
        require_columns(fed, self.pairs, d := len(self.metric.at))
        x = np.zeros((len(self.pairs.main), d)) if x is None else np.array(x, dtype=np.float64)
        state = {"t": 0, "status": "running", "x": x, "quarantined": np.zeros(len(fed.clients), dtype=np.int64)}
        return state | self.optimiser.init(x)

    def gradients(self, fed: Federation, state: State, **how: Any) -> tuple[Floats, Floats, Bools, Bools, State]:
        """g_0 and g_avg (M, d) at x, whether each is there (M,), and what ``Guarded`` remembers."""
        guard = {name: getattr(self, name) for name in ("aggregator", "participation", "remember", "seed")}
        alone = self.aggregator is not None or self.participation < 1.0 or self.remember  # all are looked at together
        found, size = [], len(self.metric.at)
        for first, last in [(0, len(self.pairs.main))] if alone else self.pairs.blocks(size):
            guarded = Guarded(fed, state, {"theta": self.metric.at}, units=self.metric.gradient, **guard)
            M = last - first
            sums = guarded.total(weighted_gradient, **self._request(state, slice(first, last), **how))
            there, state = sums["weight"] > 0.0, state | guarded.state
            g = sums["g"] / np.where(there, sums["weight"], 1.0)[:, None]
            found.append((g[:M], g[M:], there[:M], there[M:]))
        g_0, g_avg, present, helped = (np.concatenate(part) for part in zip(*found, strict=True))
        return g_0, g_avg, present, helped, guarded.state

    def _request(self, state: State, some: slice, eta: Any = None, correction: Any = None, **how: Any) -> State:
        """What some main clients and their collaborators are asked; local steps of eta take ``correction`` off."""
        pairs, M = self.pairs.of_main(some), some.stop - some.start
        message = {"t": state["t"], "local": self.local, "batch": self.batch, "stream": "rows"} | how
        message |= {"to": pairs.request_client, "by": pairs.request_group, "groups": 2 * M}
        if eta is not None:
            shift = self.metric.cotangent(correction[some])[pairs.request_main]
            shift[:M] = 0.0
            own = PerRow(eta[some][pairs.request_main])
            message |= {"shift": PerRow(shift), "P": self.metric.preconditioner, "eta": own}
        theta = self.metric.theta(state["x"][some])[pairs.request_main]
        return message | {"theta": PerRow(theta), "weight": PerRow(np.concatenate([np.ones(M), pairs.tau]))}

    def direction(self, g_0: Floats, g_avg: Floats, alpha: Floats, helped: Bools, state: State) -> tuple[Floats, State]:
        """g (M, d), and what changes in the state; alpha (M, 1) is 0 for those that nobody ``helped``."""
        return (1.0 - alpha) * g_0 + alpha * g_avg, {}

    def correction(self, state: State) -> Floats:
        """What is taken off collaborators' gradients (M, d)."""
        return np.zeros_like(state["x"])

    @np.errstate(over="ignore", invalid="ignore")  # a divergence is found and named
    def step(self, fed: Federation, state: State) -> State:
        """One round of all main clients; one whose own gradient is missing stays where it is.

        A divergence ends the run of all: ``diverged`` are the positions in ``main``, at the last finite x.
        """
        t = state["t"]
        alpha, eta = self.at("alpha", t), self.at("eta", t)
        how = {"eta": eta, "correction": self.correction(state)} if self.local > 1 else {}
        g_0, g_avg, present, helped, remembered = self.gradients(fed, state, **how)
        g, new = self.direction(g_0, g_avg, np.where(helped, alpha, 0.0)[:, None] * self.listens, helped, state)
        curvature = self.at("prior_curvature", t)[:, None]
        direction, moments = self.optimiser(g + curvature * state["x"], state)
        new |= moments | {"x": state["x"] - (eta * self.local)[:, None] * direction}
        if not present.all():
            new = {k: np.where(present.reshape(-1, *[1] * (v.ndim - 1)), v, state[k]) for k, v in new.items()}
        diverged = ~(np.abs(new["x"]) < FAR).all(axis=1)
        if diverged.any():
            return state | {"status": f"diverged by step {t + 1}", "diverged": np.flatnonzero(diverged)}
        return state | remembered | new | {"t": t + 1}


@dataclass(frozen=True, kw_only=True)
class BiasCorrection(WeightedAveraging):
    """Algorithm 3.

    A beta above 1, where no theorem holds, takes c beyond the newest observed bias, and from 2 on c grows for ever.
    Some bias may make up for a lack of data (section 7): BC with alpha ends where WGA with ``keep * alpha`` does.
    """

    beta: Annotated[Schedule, Option("Weight of the newest observed bias.", above=0.0, each="main client")] = 0.1
    first: Annotated[
        int | Literal["zero", "sample"],
        Option("c_0: zero, the first observed bias, or the mean of so many samples, drawn for it (C.4).", low=1),
    ] = "sample"
    keep: Annotated[
        Schedule, Option("Share of the bias that is kept; 1 is WGA.", low=0.0, high=1.0, each="main client")
    ] = 0.0
    # ``oracle(t, x)``: unbiased estimates (M, d) of the bias at x (M, d), used instead of c_t (section 5.1); with local
    # steps it knows nothing of their drift, which c_t does
    oracle: Callable[[int, Floats], Floats] | None = None

    def init(self, fed: Federation, x: Floats | None = None) -> State:
        """The state before the first step, with c_0."""
        state = super().init(fed, x)
        state |= {"c": np.zeros_like(state["x"]), "observed": np.full(len(state["x"]), self.first == "zero")}
        if self.first in ("zero", "sample"):
            return state
        g_0, g_avg, present, helped, after = self.gradients(fed, state, local=int(self.first), stream="first bias")
        c = np.where((present & helped)[:, None], g_avg - g_0, 0.0)
        return state | {"c": c, "observed": present & helped, "quarantined": after["quarantined"]}

    def correction(self, state: State) -> Floats:
        """c_t or the oracle's bias, less what is kept of it."""
        bias = state["c"] if self.oracle is None else np.asarray(self.oracle(state["t"], state["x"]))
        if bias.shape != state["x"].shape:
            raise CoterieError(f"The oracle must give biases of shape {state['x'].shape}, not {bias.shape}.")
        return np.asarray((1.0 - self.at("keep", state["t"])[:, None]) * bias)

    def direction(self, g_0: Floats, g_avg: Floats, alpha: Floats, helped: Bools, state: State) -> tuple[Floats, State]:
        """Algorithm 3's lines; c_0 = b_0 where no bias was observed yet."""
        beta = self.at("beta", state["t"])[:, None]
        b = g_avg - g_0
        c = np.where(state["observed"][:, None], state["c"], b)
        g = (1.0 - alpha) * g_0 + alpha * (g_avg - self.correction(state | {"c": c}))
        c = np.where(helped[:, None], (1.0 - beta) * c + beta * b, state["c"])
        return g, {"c": c, "observed": state["observed"] | helped}
