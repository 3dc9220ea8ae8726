"""Lyu, Hanzely, Kolar (2022), section 6.2: the paper's optimiser beside the exact one."""

import numpy as np
import pytest

from coterie.engines.local_engines import InProcess
from coterie.methods import given_strengths
from papers.paper_001 import optimisation
from papers.paper_001.optimisation import GAMMAS, LAM, READINGS, Found, Run, follow, interval
from papers.paper_001.responses import Data
from papers.pictures import render
from papers.simulate import donor_response


@pytest.fixture(scope="module")
def data():
    table, truth = donor_response(0, 20)
    return Data.of(table, truth["formula"], truth["client"], truth["cluster"][0], 0)


def literal(data, gamma, seed, steps, weight):
    """Section 6's variant, client by client, by the package's coins."""
    from coterie.methods.clustered_l2gd.cluster_rounds import Coordinated, draw

    train = data.train
    k, m = int(train.clusters.max()) + 1, len(train)
    Gamma = gamma * np.bincount(train.clusters)
    alpha = LAM / (LAM + Gamma)
    theta, eta, p = np.zeros((m, train.X.shape[1])), optimisation.ETA, optimisation.ONE_COIN
    for _, xi0, _ in draw(seed, 0, steps, Coordinated(p), np.zeros(k)):
        for coin in xi0:
            if not coin:
                for i in range(m):
                    rows = slice(train.starts[i], train.stops[i])
                    X, y = train.X[rows], train.y[rows]
                    theta[i] -= eta / (1 - p) * weight[i] * X.T @ (1 / (1 + np.exp(-X @ theta[i])) - y)
                continue
            own = np.stack([theta[train.clusters == j].mean(axis=0) for j in range(k)])
            whole = (alpha * Gamma) @ own / (alpha @ Gamma)
            a = alpha[train.clusters][:, None]
            theta = theta - eta * gamma / p * (a * (theta - whole) + (1 - a) * (theta - own[train.clusters]))
    return theta


@pytest.mark.parametrize("reading", READINGS)
def test_it_is_the_variant_with_one_coin_on_either_reading(data, reading, monkeypatch):
    monkeypatch.setattr(optimisation, "T", 30)
    run = follow(data, reading, 10.0, 3, 30)
    weight = 1.0 / data.train.counts if reading == "mean" else np.ones(len(data.train))
    loss, _ = data.scores(literal(data, 10.0, 3, 30, weight))
    assert run.steps[-1] == 30
    assert run.losses[-1] == pytest.approx(loss.mean(), rel=1e-9)
    fed = InProcess(optimisation.losses_of(data, reading), data.train.clusters, ids=data.train.ids)
    exact = given_strengths.given(fed, data.problem, 10.0, LAM)
    assert run.exact == pytest.approx(data.scores(exact.client)[0].mean(), rel=1e-9)


def test_near_is_the_first_step_close_to_the_exact_loss():
    run = Run(np.array([0.0, 10.0, 20.0]), np.array([0.7, 0.5005, 0.4]), np.array([1.0, 0.5, 0.2]), 0.5)
    assert run.near == 10.0
    assert run.at(15) == (0.5005, 0.5)
    assert np.isnan(Run(run.steps, run.losses, run.gaps, 0.3).near)


def test_the_verdict_takes_the_best_gamma_of_each():
    steps = np.array([0.0, optimisation.T])
    at = {0.1: (0.4, 0.1), 1.36: (0.3, 0.2), 10.0: (0.2, 0.3), 100.0: (0.5, 0.4)}
    runs = {
        (reading, gamma): [Run(steps, np.array([0.7, at[gamma][0] + s]), np.array([1.0, 0.5]), at[gamma][1] + s)
                           for s in (0.0, 0.01)]
        for reading in READINGS for gamma in GAMMAS
    }  # fmt: skip
    found = Found(runs, np.array([0.15, 0.16]), np.array([0.2, 0.2]))
    row = optimisation.verdicts({"bank": found}).rows[0]
    assert row[2] == "10" and row[3] == "0.0500 (± 0.0000)"
    assert row[4] == "0.1" and row[5] == "-0.0500 (± 0.0000)"
    assert optimisation.table("bank", found).rows[0][-1] == "> 5,000"
    assert b"<svg" in render(lambda: optimisation.draw({"bank": found}))


def test_intervals_are_those_of_student():
    assert interval([1.0, 2.0, 3.0]) == "2.0000 (± 2.4841)"
