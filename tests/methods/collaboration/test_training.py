"""Weighted averaging and bias correction on softmax and nets, against plain loops; main clients and those who help."""

from __future__ import annotations

import numpy as np
import pytest

from coterie import load
from coterie.errors import CoterieError
from coterie.methods.collaboration import collaborators
from coterie.methods.registry import trained_method
from coterie.runs.training import train
from tests.messages import names
from tests.methods.plain_softmax import gradients, problem
from tests.trained import result_of

NET = {"path": "mlp", "args": {"sizes": [64, 5, 10]}, "dtype": "float64"}


def loop(gradient, n, mains, helpers, *, eta, alpha, tau=1, beta=None, rounds=3):
    """Algorithms 2 and 3 from zero, main client by main client, with tau local steps of everybody."""
    out = {}
    for main in mains:
        d = len(gradient(0, np.zeros(650)))
        x, c = np.zeros(d), None
        for _ in range(rounds):
            correction = np.zeros(d) if c is None else c

            def met(i, shift, x=x):
                at, total = x.copy(), np.zeros(len(x))
                for _ in range(tau):
                    g = gradient(i, at)
                    total += g
                    at -= eta * (g - shift)
                return total / tau

            own = met(main, np.zeros(d))
            others = np.mean([met(i, correction) for i in helpers if i != main], axis=0)
            bias = others - own
            if beta is not None:
                c = bias if c is None else c
                step = (1 - alpha) * own + alpha * (others - c)
                c = (1 - beta) * c + beta * bias
            else:
                step = (1 - alpha) * own + alpha * others
            x = x - eta * tau * step
        out[main] = x
    return out


@pytest.mark.parametrize("at_once", [collaborators.AT_ONCE, 1])
@pytest.mark.parametrize("tau", [1, 3])
@pytest.mark.parametrize("name", ["weighted-averaging", "bias-correction"])
def test_rounds_are_those_of_the_algorithm_however_many_models_travel_at_once(name, tau, at_once, monkeypatch):
    monkeypatch.setattr(collaborators, "AT_ONCE", at_once)
    four = problem()
    gradient, _ = gradients(four)
    at = [four.data.labels.index(label) for label in ("1", "2", "3")]
    beta = 0.3 if name == "bias-correction" else None
    expected = loop(gradient, 4, at[:2], at, eta=0.3, alpha=0.4, tau=tau, beta=beta)
    given = {"main": ["1", "2"], "collaborators": ["1", "2", "3"], "eta": 0.3, "alpha": 0.4, "tau": tau, "B": 0}
    found = train(four, name, given | ({"beta": 0.3} if beta else {}))
    for i, x in expected.items():
        np.testing.assert_allclose(found.theta[i], x, atol=1e-6)
    helpers = np.setdiff1d(np.arange(4), at[:2])
    assert np.isnan(found.theta[helpers]).all() and (found.scores.weight[helpers] == 0.0).all()
    assert found.helpers == [four.data.labels[i] for i in helpers]
    assert any("main clients" in note and "2 others help" in note for note in found.notes)


@pytest.mark.parametrize("net", [{}, {"model": NET}], ids=["softmax", "net"])
def test_without_collaborators_weight_clients_are_local(net):
    four = problem(**net)
    local = train(four, "local", {"eta": 0.3, "B": 0, "E": 3})
    alone = train(four, "weighted-averaging", {"eta": 0.3, "B": 0, "tau": 3, "alpha": 0.0})
    np.testing.assert_allclose(alone.theta, local.theta, atol=1e-8)
    layered = train(four, "weighted-averaging", {"eta": 0.3, "B": 0, "tau": 3, "alpha": 0.7, "personal": ["*"]})
    np.testing.assert_allclose(layered.theta, local.theta, atol=1e-8)
    free = train(four, "weighted-averaging", {"eta": 0.3, "B": 0, "tau": 3, "alpha": 0.7})
    assert np.abs(free.theta - local.theta).max() > 1e-3


def test_the_k_most_alike_are_of_the_same_group():
    eight = problem(data={"clients": 8, "rows": 640}, model=NET)
    trainer = trained_method("weighted-averaging")
    method = trainer.make(0, eta=0.4, B=0, k=2, labels=eight.data.labels)
    state = method.init(eight.engine(trainer))
    group = eight.data.group
    assert len(state["tau"]) == 16
    assert np.mean(group[state["main"][state["pair_main"]]] == group[state["pair_client"]]) > 0.75


def test_a_client_that_helps_has_no_model_to_predict_with(tmp_path):
    four = problem()
    run = train(four, "weighted-averaging", {"main": ["1"]})
    result_of(four, run).save(tmp_path)
    saved = load(tmp_path)
    X = four.data.test.X[:3]
    assert saved.predict(X, "1").shape == (3,) and run.scores.weight.astype(bool).sum() == 1
    with pytest.raises(CoterieError, match=names("2 helped adapt")):
        saved.predict(X, "2")
    assert np.isfinite(saved.adapt(X, four.data.test.y[:3], by="mean").models).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"main": ["9"]}, "main 9 not there"),
        ({"collaborators": ["x"]}, "collaborators x not there"),
        ({"main": ["1"], "collaborators": ["1"]}, "no collaborators"),
    ],
)
def test_labels_that_are_wrong_are_named(given, message):
    with pytest.raises(CoterieError, match=names(message)):
        train(problem(), "bias-correction", given)
