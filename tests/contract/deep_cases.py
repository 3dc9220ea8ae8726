"""Rows of the registry for methods on torch models: the files that run on GLMs and quadratics, unchanged.

Every run starts at the model's own first parameters: at zero, where the methods of parts 2 to 4 start by themselves, a
network with a hidden layer stands still.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from coterie.errors import CoterieError
from coterie.federation import work
from coterie.methods.apfl import APFL
from coterie.methods.async_al2sgd import AsyncAL2SGD
from coterie.methods.async_l2gd import AsyncL2GD
from coterie.methods.clustered_l2gd.theory import fractions
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbn import FedBN
from coterie.methods.fedem import FedEM
from coterie.methods.fedper import FedPer
from coterie.methods.fedproto import FedProto
from coterie.methods.fedprox import FedProx
from coterie.methods.fedrep import FedRep
from coterie.methods.fedrod import FedROD
from coterie.methods.ifca import IFCA
from coterie.methods.knn_per import KNNPer
from coterie.methods.l2gd import L2GD
from coterie.methods.moon import MOON
from coterie.methods.pfedme import PFedMe
from coterie.methods.scaffold import Scaffold
from coterie.methods.similarity_network import SimilarityNetwork
from coterie.methods.weighted_averaging_and_bias_correction import BiasCorrection, WeightedAveraging
from coterie.objectives.deep import Deep
from coterie.objectives.gradient_steps import Momentum
from coterie.objectives.parameters import initial_parameters
from coterie.relations.parameter_layout import Layout
from tests.contract.baseline_cases import baseline
from tests.contract.cases import Case, Problem, State, grouped, helped, own_ties, streamed, with_theta
from tests.contract.similarity_cases import found, ring

TOLERANCE = 1e-10  # sums over rows are formed in another order where other clients are computed along


def mlp(normalised: bool = False) -> nn.Module:
    """Two layers, with BatchNorm between them where asked."""
    middle = [("bn", nn.BatchNorm1d(3))] if normalised else []
    return nn.Sequential(
        OrderedDict([("body", nn.Linear(2, 3)), *middle, ("tanh", nn.Tanh()), ("head", nn.Linear(3, 3))])
    )


def nets(m: int = 7, k: int = 3, dtype: str = "float64", **model: Any) -> Problem:
    """Rows with three classes at m clients."""
    plain = grouped(m, k)
    rng, glm = np.random.default_rng(0), plain.objective
    y = (glm.X @ rng.normal(size=(2, 3)) + 0.5 * rng.normal(size=(len(glm.X), 3))).argmax(axis=1)
    objective = Deep.of(partial(mlp, **model), glm.X, y, glm.starts, glm.stops, dtype=dtype)
    return Problem(objective, plain.clusters, plain.weights, plain.ids)


# -- clients that train at home

ROWS: dict[str, Any] = {"eta": 0.1, "B": 2, "C": 0.5}


def at_home(name: str, method: Any, tolerance: float = TOLERANCE, **problem: Any) -> Case:
    return baseline(f"deep-{name}", method, partial(nets, **problem), random=True, tolerance=tolerance)


AT_HOME = [
    at_home("fedavg", FedAvg(finetune=3, **ROWS)),
    at_home("fedavg-float32", FedAvg(E=2, **ROWS), 1e-4, dtype="float32"),
    at_home("fedavg-statistics", FedAvg(**ROWS), normalised=True),
    at_home("ditto", Ditto(lam=0.7, s=2, **ROWS)),
    at_home("pfedme", PFedMe(lam=2.0, alpha=0.1, K=2, **ROWS)),
    at_home("l2gd", L2GD(lam=0.7, alpha=0.4, tau=3, **ROWS)),
    at_home("ifca", IFCA(k=2, tau=3, **ROWS)),
    at_home("fedprox", FedProx(mu=0.7, **ROWS)),
    at_home("scaffold", Scaffold(**ROWS)),
    at_home("apfl", APFL(adaptive=True, **ROWS)),
    at_home("fedper", FedPer(personal=("head*",), **ROWS)),
    at_home("fedrep", FedRep(H=2, personal=("head*",), **ROWS)),
    at_home("fedrod", FedROD(**ROWS)),
    at_home("moon", MOON(E=2, **ROWS)),
    at_home("fedproto", FedProto(lam=1.0, **ROWS)),
    baseline("deep-fedem", FedEM(k=2, tau=2, **ROWS), nets, random=True, tolerance=TOLERANCE, per_client=("theta",)),
    at_home("knn-per", KNNPer(k=3, held=0.4, **ROWS)),
    at_home("fedbn", FedBN(**ROWS), normalised=True),
]

# -- the methods of known clusters, of main clients and of a network


@work
def begins(site):
    return {"w": np.tile(initial_parameters(site.objective, 0), (len(site), 1))}


def start(fed: Any) -> np.ndarray:
    """The model's own first parameters (d,)."""
    told = fed.ask(begins, to=[0])
    if not told:
        raise CoterieError("Nobody tells how the model starts.")
    return np.asarray(told["w"][0], dtype=np.float64)


def l2gd(fed: Any, state: State | None = None, **options: Any) -> Iterator[State]:
    p = np.full(fed.clients.k, 0.4)
    method = AsyncL2GD(own_ties(fed), 0.2, p, fractions(0.2, p), 0.02, **options)
    if not state:
        yield (state := method.init(fed, start(fed)))
    yield from method.run(fed, range(1, 13), state)


def al2sgd(fed: Any, state: State | None = None, **options: Any) -> Iterator[State]:
    p = np.full(fed.clients.k, 0.4)
    momentum = Momentum(0.3, 0.4, 0.95, 0.01, 0.005)
    method = AsyncAL2SGD(own_ties(fed), 0.2, p, fractions(0.2, p), momentum, 0.2, **options)
    if not state:
        yield (state := method.init(fed, start(fed)))
    yield from method.run(fed, range(1, 13), state)


def main_clients(method: Any, fed: Any, state: State | None = None, **options: Any) -> Iterator[State]:
    who, d = helped(fed), state["x"].shape[1] if state else len(start(fed))
    run = method(pairs=who, metric=Metric.plain(d), batch=2, alpha=0.6, eta=0.1, **options)
    yield from run.run(fed, range(1, 6), state or run.init(fed, np.tile(start(fed), (len(who.main), 1))))


def network(fed: Any, state: State | None = None) -> Iterator[State]:
    """The head is the sum of a shared and an own part."""
    layout, n = (
        Layout.of({"body.weight": 6, "body.bias": 3, "head": 12}, shared=["body*"], both=["head"]),
        len(fed.clients),
    )
    method = SimilarityNetwork(network=ring(fed), layout=layout, lam=0.02, eta=0.1, own=0.1 * n, gap=1e-12)
    if not state:
        x, Z = layout.split(np.tile(start(fed), (n, 1)))
        state = method.init(fed, x, Z)
    yield from method.run(fed, range(1, 6), state)


def with_x(fed: Any, state: State) -> Mapping[str, Any]:
    return {"x": state["x"], "quarantined": state["quarantined"].max()}


DEEP = [
    *AT_HOME,
    streamed("deep-async-l2gd", l2gd, finish=with_theta, problem=nets, per_client=("theta",), tolerance=TOLERANCE),
    streamed(
        "deep-async-al2sgd",
        partial(al2sgd, batch=2),
        finish=with_theta,
        problem=nets,
        per_client=("theta",),
        tolerance=TOLERANCE,
        random=True,
    ),
    *(
        streamed(
            f"deep-{name}", partial(main_clients, method), finish=with_x, problem=nets, tolerance=TOLERANCE, random=True
        )
        for name, method in (("weighted-averaging", WeightedAveraging), ("bias-correction", BiasCorrection))
    ),
    streamed("deep-similarity-network", network, finish=found, problem=nets, per_client=("Z",), tolerance=1e-6),
]
