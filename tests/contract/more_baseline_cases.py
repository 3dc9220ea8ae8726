"""Rows of the registry for more methods in which clients train at home: FedProx, SCAFFOLD, APFL, FedPer, FedRep, ..."""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.methods.apfl import APFL
from coterie.methods.apple import APPLE
from coterie.methods.fedala import FedALA
from coterie.methods.fedamp import FedAMP
from coterie.methods.fedbabu import FedBABU
from coterie.methods.fedbuff import FedBuff
from coterie.methods.feddyn import FedDyn
from coterie.methods.fedfomo import FedFomo
from coterie.methods.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from coterie.methods.fedper import FedPer
from coterie.methods.fedprox import FedProx
from coterie.methods.fedrep import FedRep
from coterie.methods.fedsoft import FedSoft
from coterie.methods.l2gd import L2GD
from coterie.methods.per_fedavg import PerFedAvg
from coterie.methods.pfedgraph import PFedGraph
from coterie.methods.scaffold import Scaffold
from tests.contract.baseline_cases import baseline, classes, envelopes, optimum
from tests.contract.cases import Problem, grouped, quadratic


def shared_envelopes(problem: Problem) -> dict[str, Any]:
    """Where exact proximal steps lead: the minimum of the weighted Moreau envelopes."""
    return {"w": envelopes(problem, lam=0.5)["w"]}


def common(problem: Problem) -> dict[str, Any]:
    """``argmin sum_k weight_k F_k`` over all coordinates but the last, which are shared, and everyone's last one."""
    q, w, d = problem.objective, problem.weights, problem.objective.dim
    last = q.A[:, -1, -1]
    # the best last coordinate is (b - a' x) / last, which leaves a quadratic in x
    H = q.A[:, :-1, :-1] - np.einsum("mi,mj->mij", q.A[:, :-1, -1], q.A[:, :-1, -1]) / last[:, None, None]
    h = q.b[:, :-1] - q.A[:, :-1, -1] * (q.b[:, -1] / last)[:, None]
    x = np.linalg.solve(np.einsum("m,mij->ij", w, H), w @ h)
    own = (q.b[:, -1] - q.A[:, :-1, -1] @ x) / last
    return {"w": x, "theta": np.c_[np.broadcast_to(x, (len(w), d - 1)), own]}


ROWS = {"B": 2, "C": 0.5, "E": 2}
OWN: dict[str, Any] = {"random": True, "per_client": ("theta", "w")}  # the server has a model of each client

MORE_BASELINES = [
    baseline("fedprox", FedProx(eta=0.2, E=40, mu=0.5), quadratic, to_optimum=16, optimum=shared_envelopes),
    baseline("fedprox-rows", FedProx(eta=0.1, mu=0.7, **ROWS), classes, random=True),
    baseline("fedavgm", FedAvgM(eta=0.2, beta=0.5, eta_g=0.5), quadratic, to_optimum=60, optimum=optimum),
    baseline("fedadam-rows", FedAdam(eta=0.1, **ROWS), classes, random=True),
    baseline("fedyogi-personal", FedYogi(eta=0.1, personal=("1",), **ROWS), grouped, random=True),
    baseline("fedbuff-rows", FedBuff(eta=0.1, K=4, E=2, B=2, C=0.5, online=0.7, stay=2), classes, random=True),
    baseline("fedadagrad", FedAdagrad(eta=0.1), quadratic),
    baseline("scaffold", Scaffold(eta=0.15, E=3), quadratic, to_optimum=20, optimum=optimum),
    baseline("scaffold-part", Scaffold(eta=0.05, E=4, C=0.5, option=1, eta_g=0.9), quadratic),
    baseline("scaffold-rows", Scaffold(eta=0.1, **ROWS), classes, random=True),
    baseline("scaffold-personal", Scaffold(eta=0.1, personal=("1",), **ROWS), grouped, random=True),
    baseline("l2gd", L2GD(eta=0.1, lam=0.8, tau=3, alpha=0.4), quadratic),
    baseline("l2gd-rows", L2GD(eta=0.1, lam=0.8, tau=3, B=2, C=0.5), classes, random=True),
    baseline("l2gd-clusters", L2GD(eta=0.1, lam=0.8, tau=3, alpha=0.4, B=2, C=0.5), grouped, random=True),
    baseline("l2gd-coded", L2GD(eta=0.1, lam=0.8, tau=3, alpha=0.4, up="qsgd:6", down="tv:4"), classes, random=True),
    baseline("l2gd-personal", L2GD(eta=0.1, lam=0.8, tau=3, personal=("1",), B=2, C=0.5), grouped, random=True),
    baseline("apfl", APFL(eta=0.2, alpha=0.7, E=2), quadratic),
    baseline("apfl-rows", APFL(eta=0.1, adaptive=True, **ROWS), classes, random=True),
    baseline("fedper", FedPer(eta=0.35, personal=("2",)), quadratic, to_optimum=30, optimum=common),
    baseline("fedper-rows", FedPer(eta=0.1, personal=("1", "2"), finetune=3, **ROWS), classes, random=True),
    baseline("fedrep", FedRep(eta=0.35, H=5, personal=("2",)), quadratic, to_optimum=16, optimum=common),
    baseline("fedrep-rows", FedRep(eta=0.1, H=3, personal=("1", "2"), **ROWS), classes, random=True),
    baseline("fedbabu-rows", FedBABU(eta=0.1, personal=("1", "2"), finetune=3, **ROWS), classes, random=True),
    baseline("per-fedavg-rows", PerFedAvg(eta=0.1, alpha=0.1, delta=0.1, **ROWS), classes, random=True),
    baseline("feddyn", FedDyn(eta=0.2, E=5, alpha=1.0), quadratic, to_optimum=40, optimum=optimum),
    baseline("feddyn-rows", FedDyn(eta=0.1, alpha=0.5, **ROWS), classes, random=True),
    baseline("fedala-rows", FedALA(eta=0.1, layers=("1", "2"), warmup=2, **ROWS), classes, random=True),
    baseline("fedala-coded", FedALA(eta=0.1, B=2, warmup=2, up="qsgd:6", down="tv:4"), classes, random=True),
    baseline("fedamp", FedAMP(eta=0.2, lam=0.3), quadratic, per_client=("theta", "w")),
    baseline("heurfedamp-rows", FedAMP(eta=0.1, lam=0.3, attention="cosine", **ROWS), classes, **OWN),
    baseline("pfedgraph-personal", PFedGraph(eta=0.1, lam=0.2, personal=("1",), **ROWS), grouped, **OWN),
    baseline("pfedgraph-coded", PFedGraph(eta=0.1, B=2, up="qsgd:6", down="tv:4"), classes, **OWN),
    baseline("fedfomo-rows", FedFomo(eta=0.1, held=0.4, **ROWS), classes, **OWN),
    baseline("apple-rows", APPLE(eta=0.1, personal=("1",), **ROWS), grouped, **OWN),
    baseline("fedsoft-rows", FedSoft(eta=0.1, k=2, lam=0.2, tau=3, B=2, C=0.5), classes, random=True),
]
