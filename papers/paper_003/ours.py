"""The similarity network in the study: lambda by held-out rows along its path, and models refitted in merged groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.methods.fedavg import FedAvg
from coterie.methods.networks.objective import Prior
from coterie.methods.networks.optimum import Path, grid, path
from coterie.methods.networks.similarity import Similarity
from coterie.methods.similarity_network import SimilarityNetwork
from coterie.methods.tree.penalised_tree import prepare
from coterie.numerics.arrays import Floats, Ints
from coterie.relations.clusters import adjusted_rand_index
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout
from papers.paper_003.first_order_path import approximate_lambda_max, first_order_path
from papers.paper_003.rivals import problem
from papers.paper_003.study import Chosen, Data, Gridded, Setting

CLOSE, EXACT = 1e-4, 1e-6
"""KKT residuals of exact paths: where losses are compared, and where it is said which clients are one."""
STEP = 5.0
"""Of softmax with ten classes, times one over the most a loss bends: at its start it bends a fifth of that."""
LOCAL, SHARED, EACH = 200, 100, 30
"""Steps that make local models, rounds that make the shared one, steps at each lambda."""


@dataclass(frozen=True)
class Walked:
    """A path, falling in lambda, and every client's model (K, m, d) at each, in the units of the rows."""

    lam: Floats
    theta: list[Floats]
    groups: list[Ints]
    path: Path


Walk = Callable[[Data, Floats | None], Walked]
"""``walk(data, lam)``: the path, over lam (falling) or lambdas of its own."""


def on_table(network: Mapping[str, Any], steps: int = 16, span: float = 1e-3, kkt: float = EXACT) -> Walk:
    """Exact minimisers for a table; the network is drawn anew from the rows that are given."""
    asked = Similarity.of(network)

    def walk(data: Data, lam: Floats | None) -> Walked:
        fed, about = data.fed(), problem(data)
        graph = asked.network(fed, about)
        setup = prepare(fed, about.tree, about.family, about.personal, about.intercept)
        how: dict[str, Any] = {"layout": Layout.columns(setup.p, about.personal), "unit": setup.unit}
        how |= {"prior": Prior.of(graph, about.family), "kkt": kkt if lam is None else CLOSE}
        found = path(fed, graph, lam=lam, steps=steps, span=span, **how)
        here = found.at[1:]
        return Walked(found.lam[1:], [o.theta * setup.unit for o in here], [o.groups for o in here], found)

    return walk


def local_models(data: Data) -> Floats:
    """Every client's own softmax."""
    fed = data.fed()
    method = FedAvg(eta=STEP / data.curvature, finetune=LOCAL)
    return np.asarray(method.models(fed, method.init(fed)))


def over_steps(draw: Callable[[Data, Floats], Network]) -> Walk:
    """Algorithm 6 upwards from local models; ``draw(data, models)`` makes the network from the rows that are given."""

    def walk(data: Data, lam: Floats | None) -> Walked:
        fed, alone = data.fed(), local_models(data)
        (m, d), eta = alone.shape, STEP / data.curvature
        rows = data.clients.counts / data.clients.counts.sum()
        layout = Layout.columns(d, np.arange(d))
        method = SimilarityNetwork(network=draw(data, alone), layout=layout, lam=0.0, eta=eta, own=eta / rows, gap=1e-4)
        nothing = np.zeros(0)
        if lam is None:
            shared = FedAvg(eta=eta, E=5)
            *_, state = shared.run(fed, [SHARED])
            lam = grid(approximate_lambda_max(fed, method, nothing, np.tile(state["w"], (m, 1))), 16, 1e-3)
        found = first_order_path(fed, method, lam, nothing, alone, EACH)
        return Walked(found.lam, [o.theta for o in found.at], [o.groups for o in found.at], found)

    return walk


def remembered(walk: Walk) -> Walk:
    """The same, where rows and lambdas that come again are not walked again."""
    found: dict[Any, Walked] = {}

    def again(data: Data, lam: Floats | None) -> Walked:
        key = data.clients.order.tobytes(), None if lam is None else lam.tobytes()
        if key not in found:
            found[key] = walk(data, lam)
        return found[key]

    return again


@dataclass(frozen=True)
class Ours:
    """The penalised model, or (``refit``) a model for each group of clients that have merged.

    Attributes
    ----------
    walk : callable
    refit : callable, optional
        ``refit(groups)``: what is fitted in every group by itself; its settings are chosen with lambda.
    known : (m,), optional
        Hidden groups, only to say how well the merged ones agree.
    """

    walk: Walk
    refit: Callable[[Ints], Gridded] | None = None
    known: Ints | None = None

    def choose(self, data: Data, inner: int, seed: int) -> Chosen:
        """The lambda with the lowest loss on held-out rows; of equal ones, which make the same groups, the middle."""
        whole = self.walk(data, None)
        settings: list[Setting] = [{}] if self.refit is None else list(self.refit(whole.groups[0]).settings)
        losses = np.zeros((len(whole.lam), len(settings)))
        for repeat in range(inner):
            train, held = data.split(seed + 1, repeat)
            found = self.walk(train, whole.lam)
            losses += self._losses(train, held, found, settings)
        how = int(np.argmin(losses.min(axis=0)))
        equal = np.flatnonzero(losses[:, how] == losses.min())
        at = int(equal[len(equal) // 2])
        theta = self._models(data, whole, at, [settings[how]])[0]
        groups = [int(g.max()) + 1 for g in whole.groups]
        about: dict[str, Any] = {"lam": whole.lam, "groups": groups, "held_out": losses.min(axis=1) / inner}
        about["merged"] = whole.groups[at]
        if self.known is not None:
            known = self.known
            about["rand"] = [adjusted_rand_index(g, known) for g in whole.groups]
            about["range"] = lambda_range(whole.path, lambda g: adjusted_rand_index(g, known) >= 0.95)
        share = {"lam / largest": float(whole.lam[at] / whole.lam[0]), "groups": groups[at]}
        return Chosen(share | settings[how], theta, about)

    def _models(self, data: Data, found: Walked, at: int, settings: Sequence[Setting]) -> Sequence[Floats]:
        """Models at one point of the path, by setting."""
        if self.refit is None:
            return [found.theta[at]]
        return self.refit(found.groups[at]).fits(data, settings)

    def _losses(self, train: Data, held: Data, found: Walked, settings: Sequence[Setting]) -> Floats:
        """Held-out losses (lambdas, settings); groups that come again are not fitted again."""
        losses: list[list[float]] = []
        made: dict[bytes, int] = {}
        for at, groups in enumerate(found.groups):
            first = made.setdefault(groups.tobytes(), at)
            if self.refit is not None and first < at:
                losses.append(losses[first])
            else:
                losses.append([held.loss(theta) for theta in self._models(train, found, at, settings)])
        return np.array(losses)


def lambda_range(path: Path, fits: Callable[[Ints], bool]) -> float:
    """The largest ratio of two finite lambdas between which the groups at all lambdas fit; 0 where none do."""
    good = np.array([fits(groups) for groups in path.labels]) & np.isfinite(path.lam)
    best, start = 0.0, -1
    for k, yes in enumerate(good):
        start = -1 if not yes else k if start < 0 else start
        best = max(best, float(path.lam[start] / path.lam[k])) if yes else best
    return best
