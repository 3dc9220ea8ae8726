"""Tan, Long, Liu, Zhou, Lu, Jiang, Zhang (2022), FedProto: federated prototype learning, Algorithm 1.

Clients keep their nets and share prototypes: the mean features of each class. The server averages them by numbers of
rows, and beside the loss of a row stands lambda times the distance of its features from its class's prototype. A row is
of the class whose prototype is nearest, so that a client knows classes that it has no row of. (PFLlib counts clients
alike, and averages features met while training; here they are of the trained model, by rows.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from coterie.errors import CoterieError
from coterie.federation import Federation, Site, Sums, work
from coterie.methods.fedrod import ABSENT, NO_HEAD, named
from coterie.methods.local_training.client_work import LocalRound, ModelTransport, Reply, features, finite
from coterie.methods.local_training.rounds import LocalTraining, Passes, State, patterns
from coterie.numerics.arrays import Floats, Ints
from coterie.objectives.gradient_steps import FeatureTerm
from coterie.objectives.parameters import layer_sizes
from coterie.options import Option
from coterie.relations.parameter_layout import matching


def classes(site: Site, head: list[str], bias: list[str]) -> tuple[Ints, int, int]:
    """The class of every row, the number of classes K and that of features h; a CoterieError for another head."""
    sizes = layer_sizes(site.objective)
    layers, K = matching(head, sizes), sum(sizes[name] for name in matching(bias, sizes))
    h = sizes[layers[0]] // K
    linear = [sizes[name] for name in layers] == [K * h, K] and matching(bias, sizes) == layers[1:]
    if not linear or not getattr(getattr(site.objective, "architecture", None), "labels", False):
        raise CoterieError("FedProto" + NO_HEAD)
    y = site.objective.targets()
    if y.ndim > 1:
        raise CoterieError("FedProto" + NO_HEAD)
    return y.astype(np.int64), K, h


def prototypes(site: Site, theta: Floats, head: list[str], y: Ints, K: int) -> tuple[Floats, Floats]:
    """Sums (m, K, h) of features under models theta (m, d) of the rows of each class y, and the weights of these."""
    z, weight, m = features(site, theta, head), site.objective.row_weights(), len(site)
    at = np.repeat(np.arange(m), site.objective.counts) * K + y
    n, sums = np.bincount(at, weight, m * K).astype(np.float64), np.zeros((m * K, z.shape[1]))
    np.add.at(sums, at, weight[:, None] * z)
    return sums.reshape((m, K, -1)), n.reshape((m, K))


@work
def update(site: Site, head: list[str], bias: list[str], lam: float, P: Floats, n: Floats, **sent: Any) -> Reply:
    """LocalUpdate: steps of a client's own model, where nothing pulls features of a class that nobody knew (n is 0)."""
    here, beside = LocalRound(site, **sent), None
    y, K, h = classes(site, head, bias)
    if len(P):
        beside = FeatureTerm("distance", tuple(head), lam, P[y][:, None], (n[y] > 0.0).astype(np.float64))
    theta = here.train(beside=beside)
    good = finite(theta)
    sums, count = prototypes(site, np.where(good[:, None], theta, here.start), head, y, K)
    if sums.shape[2] != h:
        raise CoterieError("FedProto" + NO_HEAD)
    sound = (good & np.isfinite(sums).all(axis=(1, 2))) * site.weights
    sent = np.where(sound[:, None, None] > 0.0, sums, 0.0) * sound[:, None, None]
    return here.reply(theta, good) | {"P": sent, "n": count * sound[:, None]}


@work
def nearest(site: Site, head: list[str], bias: list[str], P: Floats, n: Floats, **sent: Any) -> Reply:
    """A client's model (m, d), whose head scores a class by ``(2 P_j' z - |P_j|^2) / h``; its own where there is no P.

    That is the mean squared distance from its prototype with a minus, but for what all classes have in common.
    """
    theta, b = np.array(LocalRound(site, **sent).start), named(site, bias)
    if len(P):
        theta[:, named(site, head) & ~b] = (2.0 / P.shape[1] * P).ravel()
        theta[:, b] = np.where(n > 0.0, -np.square(P).mean(axis=1), ABSENT)
    return {"theta": theta}


@work
def last_prototypes(site: Site, head: list[str], bias: list[str], theta: Floats) -> Reply:
    """The prototypes (1, K, h) that a trained model theta (d,) has in its head, and which were known (1, K)."""
    b = named(site, bias)
    W, far = theta[named(site, head) & ~b].reshape(1, b.sum(), -1), theta[None, b]
    return {"P": W * (0.5 * W.shape[2]), "n": (far > 0.5 * ABSENT).astype(np.float64)}


@dataclass(frozen=True, kw_only=True)
class FedProto(LocalTraining):
    """Algorithm 1; the distance is the mean squared difference of single rows' features, as in the authors' code.

    That of the paper, of means over a batch's rows of a class, is less by how features scatter within the class. A
    class that nobody sent in a round keeps its last prototype, and one that nobody ever had is predicted for no row.
    """

    joins: ClassVar[str] = "rounds"
    head: Annotated[tuple[str, ...], patterns("The head, one linear layer: what it is given are the features.")] = (
        "head*",
    )
    bias: Annotated[tuple[str, ...], patterns("Its bias, a number for each class.")] = ("head*bias",)
    lam: Annotated[float, Option("lambda: what the distance from prototypes counts beside the loss.", low=0.0)]
    E: Passes = 1
    update, model = staticmethod(update), staticmethod(nearest)
    without = ("FedProto's clients keep all layers", "personal")

    @property
    def transport(self) -> ModelTransport:
        """All layers stay."""
        return {"personal": ["*"], "seed": self.seed}

    def init(self, fed: Federation, w: Floats | None = None) -> State:
        """The state before the first round, in which there are no prototypes P (K, h), nor rows n (K,) of classes."""
        return super().init(fed, w) | {"P": np.zeros((0, 0)), "n": np.zeros(0)}

    def met(self, fed: Federation, theta: Floats) -> State:
        """What a client that comes later is sent in every round: the prototypes that models theta (d,) ended with."""
        found = fed.ask(last_prototypes, to=np.zeros(1, np.int64), theta=theta, head=self.head, bias=self.bias)
        return {name: found[name][0] for name in ("P", "n")}

    def round(self, fed: Federation, state: State, to: Ints) -> tuple[Sums, State]:
        """Lines 3 to 8."""
        sums = self.exchange(fed, self.update, to, state)
        if not sums:
            return sums, {}
        P, n = (state[name] if len(state[name]) else np.zeros_like(sums[name]) for name in ("P", "n"))
        some = sums["n"] > 0.0
        mean = sums["P"] / np.where(some, sums["n"], 1.0)[:, None]
        return sums, {"P": np.where(some[:, None], mean, P), "n": np.where(some, sums["n"], n)}
