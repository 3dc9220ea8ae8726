"""Clients that come after a training: each method's own rule against a loop of plain steps."""

from __future__ import annotations

import numpy as np
import pytest

import coterie
from coterie import Torch
from coterie.errors import CoterieError
from coterie.methods.registry import TRAINED

RNG = np.random.default_rng(0)
CLIENT = np.repeat(np.arange(6), 24)
X = RNG.normal(size=(144, 3)).astype(np.float32)
Y = (X[:, 0] * np.where(CLIENT < 3, 1.0, -1.0) + X[:, 1] > 0).astype(int)
NEW, OUT = X[:10] + 0.1, 1 - Y[:10]
ETA = 0.4


def trained(method, net=None, **options):
    steps = {"rounds": 3, "eta": ETA} | ({} if method == "dp-sgd" else {"B": 0}) | options
    return coterie.fit((X, Y), net or Torch("softmax"), client=CLIENT, method=method, rounds=steps)


def gradient(result):
    """The gradient of the mean loss of the new client's rows, as a function of one model (d,)."""
    here = result.objective(NEW, OUT)
    return lambda theta: here.gradient(theta[None])[0] / len(NEW)


def close(found, theta):
    np.testing.assert_allclose(found.models[0], theta, rtol=1e-5, atol=1e-7)


def test_fine_tuning_is_that_of_the_training():
    """Its steps, their size as the schedule has it in the end, and their rows; they were of 0.1 and of all rows."""
    halved = {"schedule": "ExponentialLR", "schedule_args": {"gamma": 0.5}}
    result = trained("fedavg", finetune=4, **halved)
    g, theta = gradient(result), result.shared[0].copy()
    for _ in range(4):
        theta -= ETA * 0.5**3 * g(theta)
    close(result.adapt(NEW, OUT), theta)
    assert np.abs(result.adapt(NEW, OUT, B=2).models[0] - theta).max() > 1e-3
    few = trained("fedavg", finetune=4, B=2, **halved)
    np.testing.assert_array_equal(few.adapt(NEW, OUT).models, few.adapt(NEW, OUT, B=2).models)


def test_fedavg_takes_steps_and_fedprox_is_held():
    for method, options, mu in (("fedavg", {}, 0.0), ("fedprox", {"mu": 0.7}, 0.7), ("dp-sgd", {"mu": 0.7}, 0.0)):
        result = trained(method, **options)  # mu of dp-sgd is the server's momentum
        g, w = gradient(result), result.shared[0]
        np.testing.assert_array_equal(w, result.client("0"))
        close(result.adapt(NEW, OUT), w)
        theta = w.copy()
        for _ in range(7):
            theta -= 0.2 * (g(theta) + mu * (theta - w))
        close(result.adapt(NEW, OUT, steps=7, eta=0.2), theta)


def test_ditto_is_pulled_to_what_is_shared(tmp_path):
    result = trained("ditto", lam=0.5, s=4)
    g, w = gradient(result), result.shared[0]
    v = w.copy()
    for _ in range(5 * 4):
        v -= ETA * (g(v) + 0.5 * (v - w))
    close(result.adapt(NEW, OUT, rounds=5), v)
    assert not np.allclose(w, result.theta.mean(axis=0), atol=1e-3)  # not where the mean of own models is
    result.save(tmp_path / "saved")
    loaded = coterie.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.adapt(NEW, OUT, rounds=5).models, result.adapt(NEW, OUT, rounds=5).models)


def test_apfl_mixes():
    result = trained("apfl", alpha=0.3)
    g, w = gradient(result), result.shared[0]
    v = w.copy()
    for _ in range(6):
        x = w.copy()
        v, x = v - 0.3 * ETA * g(0.3 * v + 0.7 * x), x - ETA * g(x)
    close(result.adapt(NEW, OUT, rounds=6), 0.3 * v + 0.7 * w)


def test_pfedme_is_in_its_envelope():
    result = trained("pfedme", lam=2.0, alpha=0.1, K=3, R=4, eta=0.1)
    g, local = gradient(result), result.shared[0].copy()
    theta = local.copy()
    for _ in range(4):
        for _ in range(3):
            theta -= 0.1 * (g(theta) + 2.0 * (theta - local))
        local -= 0.1 * 2.0 * (local - theta)
    close(result.adapt(NEW, OUT, rounds=2), theta)


def test_per_fedavg_takes_its_step():
    result = trained("per-fedavg", alpha=0.3)
    w = result.shared[0]
    close(result.adapt(NEW, OUT), w - 0.3 * gradient(result)(w))


def test_ifca_takes_the_group_with_the_least_loss():
    result = trained("ifca", Torch("mlp", args={"sizes": [3, 4, 2]}), k=2)
    here = result.objective(NEW, OUT)
    best = int(np.argmin([here.value(w[None])[0] for w in result.shared]))
    theta = result.shared[best].copy()
    for _ in range(4):
        theta -= 0.1 * gradient(result)(theta)
    found = result.adapt(NEW, OUT, steps=4, eta=0.1)
    assert found.group[0] == best
    close(found, theta)


@pytest.mark.parametrize("method", ["fedper", "lg-fedavg"])
def test_own_layers_are_trained_on_shared_ones_that_stay(method):
    net = Torch("mlp", args={"sizes": [3, 4, 2]})
    own = ["head*"] if method == "fedper" else ["dense*"]
    steps = {"rounds": 3, "eta": ETA, "B": 0}
    result = coterie.fit((X, Y), net, client=CLIENT, method=method, personal=own, rounds=steps)
    g, w = gradient(result), result.shared[0]
    sizes = result.objective(NEW).names
    mine = np.repeat([name.startswith(own[0][:-1]) for name in sizes], [*sizes.values()])
    np.testing.assert_array_equal(w[~mine], result.client("0")[~mine])
    np.testing.assert_array_equal(w[mine], result.objective(NEW).start(0)[mine])  # as any client began
    theta = w.copy()
    for _ in range(5):
        theta -= ETA * g(theta)
        theta[~mine] = w[~mine]
    close(result.adapt(NEW, OUT, rounds=5), theta)


HELD = [
    name
    for name, row in TRAINED.items()
    if row.method_class.__dict__.get("joins") == "rounds" and not row.layout and not row.normalises
]


@pytest.mark.parametrize("method", HELD)
def test_what_a_method_makes_of_a_new_client_suits_its_rows(method):
    more = {"group": np.where(CLIENT < 3, "a", "b")} if TRAINED[method].groups else {}
    steps = {"rounds": 3, "B": 0} | ({"eta": 0.1} if "eta" in TRAINED[method].hyper_parameters else {})
    net = Torch("mlp", args={"sizes": [3, 4, 2]}) if method == "fedrod" else Torch("softmax")
    result = coterie.fit((X, Y), net, client=CLIENT, method=method, rounds=steps, **more)
    here, found = result.objective(NEW, OUT), result.adapt(NEW, OUT, rounds=30)
    assert found.models.shape == result.theta[:1].shape
    assert here.value(found.models)[0] < min(here.value(w[None])[0] for w in result.shared)


def test_a_method_without_a_rule_says_so():
    result = trained("fedamp")
    with pytest.raises(CoterieError, match=r"fedamp has no rule for a client .* by='mean'"):
        result.adapt(NEW, OUT)
    close(result.adapt(NEW, OUT, by="mean"), result.theta.mean(axis=0))
    with pytest.raises(CoterieError, match="by of adapt"):
        result.adapt(NEW, OUT, by="rule")
    with pytest.raises(CoterieError, match=r"rounds of adapt.* changes nothing for fedavg"):
        trained("fedavg").adapt(NEW, OUT, rounds=3)
