"""FedBuff: against a loop over events written from the paper, and known limits."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbuff import FedBuff
from coterie.methods.local_training.rounds import available
from coterie.numerics import keyed_random
from tests.methods.test_more_baselines import final, pooled, quadratic
from tests.reference.fedbuff_loop import fedbuff
from tests.reference.test_local_training_twin import (
    IDS,
    ROUNDS,
    WEIGHTS,
    M,
    by_rows,
    close,
    epochs,
    gradients,
    objective,
    run,
)


@pytest.mark.parametrize(
    ("kind", "B", "C", "K"), [("quadratic", 0, 1.0, 3), ("glm", 2, 0.7, 2), ("softmax", 2, 0.5, 2)]
)
@pytest.mark.parametrize("online", [1.0, 0.6])
def test_fedbuff(kind, B, C, K, online):
    o = objective(kind)
    w0 = np.random.default_rng(1).normal(size=o.dim)
    state, models = run(FedBuff(eta=0.1, B=B, C=C, E=2, K=K, eta_g=0.8, online=online, stay=2, seed=9), o, w0)

    def order(t):
        return np.argsort(keyed_random.uniform(9, "participation", IDS, t, 1)[:, 0])

    def takes(k, t):
        return abs(keyed_random.normal(keyed_random.starts(9, "duration", IDS[k : k + 1]), t, 1)[0, 0])

    def there(k, hour):
        phase = int(2 * keyed_random.uniform(9, "phase", IDS[k : k + 1], 0, 1)[0, 0])
        return keyed_random.uniform(9, "online", IDS[k : k + 1], (hour + phase) // 2, 1)[0, 0] < online

    loop = gradients(o, B), by_rows(o), w0, 0.1, 0.8, epochs(o, 2, B)
    w, stale = fedbuff(*loop, ROUNDS, max(round(C * M), 1), K, order, takes, there)
    assert max(stale) > 0
    np.testing.assert_allclose(state["w"], w, **close)
    np.testing.assert_allclose(models, np.tile(w, (M, 1)), **close)


def test_whoever_waits_for_all_is_fedavg():
    o = objective("glm")
    w0 = np.zeros(o.dim)
    common = {"eta": 0.1, "B": 2, "E": 2, "seed": 9}
    np.testing.assert_allclose(
        run(FedBuff(**common, K=M), o, w0)[0]["w"], run(FedAvg(**common), o, w0)[0]["w"], **close
    )


def test_it_comes_near_the_optimum():
    """Steps of all rows at an old model still lead to where the gradient of the sum is zero."""
    o, w = quadratic(), np.arange(1.0, 9.0)
    fed = InProcess(o, weights=w)
    far = np.abs(final(FedBuff(eta=0.02, K=4, seed=3), fed, 5)["w"] - pooled(o, w)).max()
    near = np.abs(final(FedBuff(eta=0.02, K=4, seed=3), fed, 600)["w"] - pooled(o, w)).max()
    assert near < 0.1 * far


def test_nobody_there_is_another_hour():
    fed = InProcess(objective("quadratic"), weights=WEIGHTS, ids=IDS, seed=5)
    for method in (FedBuff(eta=0.1, online=1e-9), FedAvg(eta=0.1, online=1e-9)):
        state = final(method, fed, 3)
        np.testing.assert_array_equal(state["w"], 0.0)
        assert state["t"] == 3 and state["status"] == "running"
        assert state.get("hour", 3.0) == 3.0


def test_clients_come_and_go():
    """A share of the time, each for multiples of ``stay`` rounds from a place of its own, whoever else is asked."""
    ids = np.arange(4000, dtype=np.uint64)
    trace = np.array([available(ids, t, 0.3, 6, 1) for t in range(60)])
    np.testing.assert_allclose(trace.mean(), 0.3, atol=0.01)  # standard error 0.0023: 40,000 stretches
    changes, place = np.nonzero(np.diff(trace.astype(int), axis=0))
    assert all(len(np.unique(changes[place == i] % 6)) <= 1 for i in range(100))
    assert len(np.unique(changes % 6)) == 6
    np.testing.assert_array_equal(available(ids[::-7], 11, 0.3, 6, 1), trace[11, ::-7])
