"""Hanzely, Richtárik (2020), Federated learning of a mixture of global and local models: L2GD; with known clusters.

Clients' own models minimise, with p_i the share of client i's rows, ``theta_j`` and ``theta`` the means in its cluster
and over all,

    ``sum_i p_i (f_i(theta_i) + lam/2 ((1 - alpha) |theta_i - theta_j|^2 + alpha |theta_i - theta|^2))``,

which is (2.1) of Lyu, Hanzely, Kolar (2022); alpha = 1 knows no clusters and is L2GD. At every step one coin decides
between a communication and a local gradient step (there, section 6). A round is a communication and the local steps
until the next. In ``async_l2gd`` clusters communicate at different times, and theory chooses the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.codecs import by_name
from coterie.errors import CoterieError
from coterie.federation import Federation, Site, Sums, work
from coterie.methods.groups.group_models import address, group_means, round_of_groups
from coterie.methods.local_training.client_work import Reply, personal
from coterie.methods.local_training.rounds import LocalTraining, Smoothness, State, client_models
from coterie.numerics import keyed_random
from coterie.numerics.arrays import Bools, Floats, Ints
from coterie.options import Option


@work
def update(site: Site, pull: float, steps: int, clusters: bool, **sent: Any) -> Reply:
    """The pull of a communication towards w, then ``steps`` local steps; t were before them."""
    here = round_of_groups(site, clusters, **sent)
    theta = site.state.get("theta", here.start)
    new = here.train(theta - theta.dtype.type(pull) * (theta - here.start), steps, done=here.t, plain=True)
    return here.reply(new, kept={"theta": (new, theta)})


@dataclass(frozen=True, kw_only=True)
class L2GD(LocalTraining):
    """One coin for all; the papers' step size is ``eta (1 - p)`` with p = 1 / (1 + tau) the probability of a round.

    A communication pulls by ``eta tau lam``, which theory takes to be 1 at most: above it models overshoot their mean,
    and run away above 2.
    """

    joins: ClassVar[str] = "rounds"
    lam: Annotated[float, Option("Strength of the ties: 0 makes clients local.", low=0.0)]
    alpha: Annotated[float, Option("Share of the tie to all clients, not to the cluster.", low=0.0, high=1.0)] = 1.0
    tau: Annotated[float, Option("Mean number of local steps in a round, drawn for all.", above=0.0, high=1e9)] = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (by_name(self.up).unbiased or self.up.startswith("float")):
            raise CoterieError(
                f"Clients' models stay apart, and up = '{self.up}' would lose the same part of them in every round: "
                "take a codec without bias, such as qsgd:4, or float16."
            )

    @classmethod
    def suited(cls, losses: Smoothness, how: Mapping[str, Any]) -> dict[str, Any]:
        """Half of what is stable, for local steps and for communications: the step of the paper's theory."""
        return {"eta": 0.5 / max(losses.L, how.get("tau", 10.0) * how["lam"])}

    @property
    def notes(self) -> list[str]:
        """Where a communication overshoots."""
        if callable(self.eta) or (size := self.pull(self.eta)) <= 1.0:
            return []
        return [
            f"A communication pulls by eta tau lam = {size:g}, beyond the mean, where the theory of L2GD ends "
            f"(eta tau lam of 1){': models run away' if size > 2.0 else ''}. Take a smaller one of them."
        ]

    def pull(self, eta: float) -> float:
        """By how much a communication pulls, ``eta (1 - p) lam / p``."""
        return eta * self.tau * self.lam

    def drawn(self, t: int) -> int:
        """Local steps of round t: how often the coin falls on them before the next communication."""
        u = keyed_random.uniform(self.seed, "local steps", np.zeros(1, dtype=np.int64), t, 1)[0, 0]
        return int(np.log1p(-u) // -np.log1p(1.0 / self.tau))

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first round: all clients have the same model."""
        state, k = super().init(fed, w), fed.clients.k
        size = np.bincount(fed.clients.clusters[state["quarantined"] == 0], minlength=k) * 1.0
        return state | {"w": np.tile(state["w"], (k, 1)), "weight": size, "steps": 0}

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """Clients are pulled to what their means made, and step on; clusters not asked keep their mean and weight."""
        steps, means = self.drawn(state["t"]), state["w"]
        towards = list(((1.0 - self.alpha) * means + self.alpha * self.mean(state)).astype(means.dtype))
        message = address(fed, fed.clients.clusters, towards, to, self.compression.active)
        message |= {"pull": self.pull(self.rate(state["t"])), "steps": steps, "t": state["steps"]}
        sums = self.exchange(fed, update, to, state, **message)
        weight, answered = self.answered_weight(fed, state, sums)
        new = np.stack(towards) + np.stack(group_means(sums, towards)[1])
        new = np.where((answered & (weight > 0.0))[:, None], new, means).astype(means.dtype)
        return sums, {"w": new, "weight": weight, "steps": state["steps"] + steps}

    def answered_weight(self, fed: Federation, state: State, sums: Sums) -> tuple[Floats, Bools]:
        """The weight of each cluster (k,), those that answered standing for all of its clients; and who answered."""
        clusters, k = fed.clients.clusters, fed.clients.k
        if not sums:
            return state["weight"], np.zeros(k, dtype=bool)
        answered = np.bincount(clusters[sums.to[sums.rows]], minlength=k)
        members = np.bincount(clusters[state["quarantined"] == 0], minlength=k)
        each = np.asarray(sums["w"], dtype=np.float64) / np.maximum(answered, 1)
        return np.where(answered > 0, each * members, state["weight"]), answered > 0

    def mean(self, state: State) -> Floats:
        """The mean (d1,) over all clients."""
        weight = state["weight"] if state["weight"].any() else np.ones(len(state["weight"]))
        return np.asarray(weight / weight.sum() @ state["w"], dtype=state["w"].dtype)

    def models(self, fed: Federation, state: State) -> Floats:
        """Every client's own model (m, d); the mean for those that never took part."""
        mean = self.mean(state)
        return client_models(fed, state | {"w": mean}, personal, w=mean, transport=self.transport)
