"""Async-L2GD and Async-AL2SGD+ over rounds, for any objective: nets and softmax, with known groups as clusters.

A round is ``tau`` steps of the algorithm, each as coins decide. Losses are clients' sums over their rows, in units of
the largest client's, so that eta is a step on its mean loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.errors import CoterieError, listed
from coterie.federation import Federation, Site, require_all_replies, work
from coterie.methods.async_al2sgd import AsyncAL2SGD
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.clustered_l2gd.theory import fractions
from coterie.methods.local_training.client_work import ModelTransport
from coterie.methods.local_training.first_models import ask_first_models
from coterie.methods.local_training.new_client import group_means
from coterie.methods.local_training.rounds import client_models, first_quarantine, patterns
from coterie.methods.stepwise import Stepwise
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.gradient_steps import Momentum
from coterie.objectives.mean_loss import sizes
from coterie.objectives.parameters import precision
from coterie.options import Checked, Option, need_names
from coterie.relations.clusters import ClusterTies

State = dict[str, Any]


def _share(tie: str, average: str, parts: str) -> Option:
    """A share of ties that goes on to all.

    By default an average is tied to that above as its parts to itself: Proposition 2.2 with ``lambda_j = gamma_i``.
    """
    what = "a number from 0 to 1, or a table of labels and such numbers"
    text = f"Share of {tie} that is to all, not to {average}; by default 1 / (1 + its {parts})."
    return Option(text, low=0.0, high=1.0, what=what)


def each_of(name: str, value: Any, labels: Sequence[str], usual: Any = 0.0) -> Floats:
    """A number for each of some labels (k,), of one for all or a table; ``usual`` where there is none.

    A CoterieError for a label that is not there, and one that a table leaves out.
    """
    if isinstance(value, dict):
        need_names(name, value, labels, "group")
        if left := [label for label in labels if label not in value]:
            raise CoterieError(f"{name} has numbers of each group and none of {listed(left)}: give all, or one number.")
        value = [value[label] for label in labels]
    return np.broadcast_to(np.asarray(usual if value is None else value, dtype=np.float64), len(labels))


@work
def weights(site: Site) -> State:
    """The weight of each client's rows."""
    return {"weight": sizes(site.objective)}


@work
def current(site: Site) -> State:
    """Each client's model."""
    return {"theta": site.state["theta"].astype(precision(site.objective))}


@dataclass(frozen=True, kw_only=True)
class AsyncL2GDTraining(Checked, Stepwise):
    """Algorithm 1 on ``sum_i n_i (f_i + lam/2 ((1 - alpha) |theta_i - theta_j|^2 + alpha |theta_i - theta|^2))``."""

    without_convexity: ClassVar[str] = (
        "A net's loss is neither smooth by a known constant nor strongly convex: p0, p and eta are as given, not those "
        "of the theorems, so that no rate and no distance to an optimum is promised."
    )
    joins: ClassVar[str] = "pulled"
    eta: Annotated[float, Option("Local step size of the client with the most rows.", above=0.0)]
    lam: Annotated[
        float | dict[str, float],
        Option(
            "Strength of the ties, or of each group's: 0 makes clients local.",
            low=0.0,
            what="a number from 0, or a table of groups and such numbers",
        ),
    ] = 0.1
    alpha: Annotated[float | dict[str, float] | None, _share("the tie", "the cluster", "clients")] = None
    regions: Annotated[
        dict[str, str] | None,
        Option("Which region each group is in: a level of clusters more.", what="a table of groups and regions"),
    ] = None
    beta: Annotated[float | dict[str, float] | None, _share("that beyond the cluster", "the region", "clusters")] = None
    tau: Annotated[int, Option("Steps of a round: coins make each local, or a communication.", low=1)] = 10
    p0: Annotated[
        float | None, Option("Probability of a communication of all; by default one a round.", above=0.0, below=1.0)
    ] = None
    p: Annotated[
        float | None, Option("Of one within a cluster, in the other steps; by default the same.", low=0.0, below=1.0)
    ] = None
    B: Annotated[int, Option("Rows of a step, drawn with replacement; 0 takes all.", low=0)] = 0
    personal: Annotated[
        tuple[str, ...], patterns("Layers of each client, which are tied; the others are one for all.")
    ] = ("*",)
    untied: Annotated[tuple[str, ...], patterns("Personal layers that nothing ties, such as head*.")] = ()
    seed: Annotated[int, Option("Of the coins and of the first model.", low=0)] = 0
    group_labels: Sequence[str] = ()

    @property
    def transport(self) -> ModelTransport:
        """What clients are told of how models travel."""
        return {"personal": list(self.untied), "seed": self.seed}

    @property
    def notes(self) -> list[str]:
        """Where a communication overshoots, and how what is shared is stepped on."""
        p0 = self.probabilities(2)[0]
        step = self.eta * (1.0 - p0) * (1.0 - self.probabilities(2)[1]) / p0
        lam = max(self.lam.values(), default=0.0) if isinstance(self.lam, dict) else self.lam
        out, pull = [], lam * step
        if self.personal != ("*",):
            out.append(
                f"Layers that are not personal are one for all clients: they make a step of {step:.2g} on the mean "
                "gradient, over all rows, in communications of all, and stay in between. Where that is too long, take "
                "a smaller eta or a greater p0."
            )
        if pull <= 1.0:
            return out
        return [
            *out,
            f"A communication pulls by {pull:g}, beyond the mean{': models run away' if pull > 2.0 else ''}. Take a "
            "smaller eta or lam, or a greater p0.",
        ]

    def unheeded(self, clusters: int) -> dict[str, str]:
        """Hyper-parameters that change nothing for so many clusters, and why."""
        out = dict.fromkeys(("alpha", "p") * (clusters < 2), ", as all clients are one cluster: leave it out.")
        return out | ({"beta": " without regions: give these, or leave beta out."} if self.regions is None else {})

    def probabilities(self, k: int) -> tuple[float, float]:
        """p_0, and p of each of k clusters, and regions; one cluster has no communications within it."""
        p0 = 1.0 / (1.0 + self.tau) if self.p0 is None else self.p0
        return p0, 0.0 if k < 2 or self.alpha == 1.0 else p0 if self.p is None else self.p

    def init(self, fed: Federation) -> State:
        """The state before the first round: all clients begin at the same model."""
        start = ask_first_models(fed, self.transport, [self.seed], None)
        weight, state = require_all_replies(fed.ask(weights))["weight"], first_quarantine(fed)
        if not weight.any():
            raise CoterieError("No client has any rows, so there is nothing to learn.")
        weight = np.where(state["quarantined"] == 0, weight, 0.0)
        state |= {"rows": weight, "start": start.models[0], "travels": start.shared}
        if not weight.any():
            return state
        return self._renamed(state | self.algorithm(fed, state).init(fed, start.models[0]))

    def algorithm(self, fed: Federation, state: State) -> Any:
        """Algorithm 1 with what a state knows."""
        common, eta = self._common(fed, state)
        return AsyncL2GD(**common, eta=eta, closed=False)

    def _common(self, fed: Federation, state: State) -> tuple[State, float]:
        """What both algorithms take, and the step size in the units of sums over rows."""
        k, weight, clusters = fed.clients.k, state["rows"], fed.clients.clusters
        p0, one = self.probabilities(k)
        labels = self.group_labels if len(self.group_labels) == k else [str(j + 1) for j in range(k)]
        usual = 1.0 / (1.0 + np.bincount(clusters, weight > 0.0, minlength=k))
        alpha = each_of("alpha", 1.0 if k < 2 else self.alpha, labels, usual)
        ties = ClusterTies.of(clusters, k, each_of("lam", self.lam, labels)[clusters] * weight, None, alpha)
        if self.regions is not None:
            ties = replace(ties, upper=(self._over(labels, self.regions),))
        local = (1.0 - p0) * (1.0 - one) * (1.0 - one if ties.upper else 1.0)
        p = np.full(k, one)
        common: State = {"ties": ties, "p0": p0, "p": p, "tau": fractions(p0, p), "seed": self.seed, "batch": self.B}
        common |= {"untied": None if state["travels"].all() else self.untied, "q": () if self.regions is None else (p,)}
        common["personal"] = None if self.personal == ("*",) else self.personal
        common["free"] = np.flatnonzero(state["quarantined"] == 0) if state["quarantined"].any() else None
        return common, self.eta * local / float(weight.max())

    def _over(self, labels: Sequence[str], regions: dict[str, str]) -> tuple[Ints, Floats]:
        """The region over each cluster, and what share of its tie goes on to all, (k,) each."""
        need_names("regions", regions, labels, "group")
        if left := [label for label in labels if label not in regions]:
            raise CoterieError(f"regions must say of each group where it is, and say nothing of {listed(left)}.")
        names, node = np.unique([regions[label] for label in labels], return_inverse=True)
        usual = 1.0 / (1.0 + np.bincount(node))
        beta = each_of("beta", 1.0 if len(names) < 2 else self.beta, names.tolist(), usual)
        return node, beta[node]

    def anchors(self, theta: Floats, weight: Floats, group: Ints, own: Any) -> tuple[Floats, Floats]:
        """What a later client of each cluster is pulled to (k, d), from all models (m, d), and how strongly (k,)."""
        labels = self.group_labels or [str(j + 1) for j in range(int(group.max()) + 1)]
        k, lam = len(labels), each_of("lam", self.lam, labels)
        alpha = each_of("alpha", 1.0 if k < 2 else self.alpha, labels, 1.0 / (1.0 + np.bincount(group, minlength=k)))
        node, beta = (np.zeros(k, np.int64), np.ones(k)) if self.regions is None else self._over(labels, self.regions)
        tie = weight * np.maximum(lam * alpha, 1e-12)[group]
        everyone = group_means(theta, tie * np.maximum(beta, 1e-12)[group], np.zeros_like(group))
        region = group_means(theta, tie * np.maximum(1.0 - beta, 1e-12)[group], node[group], k)[node]
        above, alpha, beta = (1.0 - beta)[:, None] * region, alpha[:, None], beta[:, None]
        return (1.0 - alpha) * group_means(theta, weight, group, k) + alpha * (above + beta * everyone), lam

    def step(self, fed: Federation, state: State) -> State:
        """One round."""
        t = state["t"]
        if not state["rows"].any():
            return state | {"status": f"ended by step {t + 1}: every client is quarantined"}
        new = self.algorithm(fed, state).advance(fed, state | {"t": t * self.tau}, self.tau)
        if new["status"] != "running":
            return state | {"status": new["status"]}
        return self._renamed(new) | {"t": t + 1}

    def _renamed(self, state: State) -> State:
        return {name: value for name, value in state.items() if name != "observed"}

    def models(self, fed: Federation, state: State) -> Floats:
        """Every client's model (m, d); the first one of those that do not answer, their cluster's of those left out."""
        if not state["rows"].any():
            return np.tile(state["start"], (len(fed.clients), 1))
        theta, out = client_models(fed, {"w": state["start"]}, current), np.flatnonzero(state["quarantined"])
        tied = state["tied"] > 0.0 if len(state["tied"]) else np.ones(theta.shape[1], dtype=bool)
        mean = state["mean"] if "mean" in state else state["means"][0]
        theta[np.ix_(out, tied)] = mean[fed.clients.clusters[out]]
        theta[np.ix_(out, state["travels"] & ~tied)] = np.atleast_2d(state["shared"])[-1]
        return theta


@dataclass(frozen=True, kw_only=True)
class AsyncAL2SGDTraining(AsyncL2GDTraining):
    """Algorithm 2 on the same, with the anchor moved with probability ``rho``."""

    rho: Annotated[
        float | None, Option("Probability that the anchor moves; by default once a round.", above=0.0, high=1.0)
    ] = None
    a1: Annotated[float, Option("Share of z in the point of a step.", above=0.0, high=0.5)] = 0.3
    a2: Annotated[float, Option("Share of the anchor x.", low=0.0, high=0.5)] = 0.3
    b1: Annotated[float, Option("What z keeps of itself; 1 where F is flat.", above=0.0, high=1.0)] = 1.0

    def algorithm(self, fed: Federation, state: State) -> Any:
        """Algorithm 2 with what a state knows; z moves by ``eta / (4 a_1)``, as Theorem 4.3's b_2 where F is flat."""
        common, eta = self._common(fed, state)
        momentum = Momentum(self.a1, self.a2, self.b1, 0.25 * eta / self.a1, eta)
        return AsyncAL2SGD(**common, momentum=momentum, rho=1.0 / self.tau if self.rho is None else self.rho)
