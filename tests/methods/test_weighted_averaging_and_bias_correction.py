"""Weighted averaging and bias correction: the literal loops, who does not answer, who sends garbage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from coterie.engines import InProcess, Loopback
from coterie.errors import CoterieError
from coterie.methods.aggregation.rules import Aggregator
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.methods.collaboration.optimisers import Adam, Momentum
from coterie.methods.collaboration.optimum import optimum
from coterie.methods.weighted_averaging_and_bias_correction import BiasCorrection, WeightedAveraging
from coterie.objectives.glm import GLM
from coterie.objectives.quadratic import NoisyQuadratic, Quadratic
from tests.messages import names

M, D = 5, 3


def quadratics(seed=0, m=M, d=D):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(m, d, d))
    return root @ root.transpose(0, 2, 1) / d + np.eye(d), rng.normal(size=(m, d))


def weights(seed=1, m=M):
    W = np.random.default_rng(seed).uniform(size=(m, m))
    np.fill_diagonal(W, 0.0)
    return W / W.sum(axis=1, keepdims=True)


def last(method, fed, steps):
    *_, state = method.run(fed, [steps])
    return state


def literal(A, b, W, alpha, eta, steps, beta=None, keep=0.0, first="zero"):
    """Algorithms 2 and 3, one main client after another, from zero."""
    out, corrections = [], []
    for i in range(len(b)):
        x, c = np.zeros(b.shape[1]), np.zeros(b.shape[1])
        for t in range(steps):
            g = np.einsum("kij,j->ki", A, x) - b
            average = W[i] @ g
            bias = average - g[i]
            if beta is None:
                x = x - eta * ((1 - alpha) * g[i] + alpha * average)
                continue
            if first == "sample" and t == 0:
                c = bias
            x = x - eta * ((1 - alpha) * g[i] + alpha * (average - (1 - keep) * c))
            c = (1 - beta) * c + beta * bias
        out.append(x)
        corrections.append(c)
    return np.array(out), np.array(corrections)


ONE_BY_ONE = [{}, {"aggregator": Aggregator()}, {"remember": True}]


@pytest.mark.parametrize("listening", ONE_BY_ONE)
def test_algorithm_2_for_all_clients_is_the_loop(listening):
    A, b = quadratics()
    W = weights()
    exchange = dict(pairs=Collaborators.of_all(W), metric=Metric.plain(D), batch=0, **listening)
    state = last(WeightedAveraging(**exchange, alpha=0.7, eta=0.1), InProcess(Quadratic(A, b)), 17)
    np.testing.assert_allclose(state["x"], literal(A, b, W, 0.7, 0.1, 17)[0], rtol=1e-12)


@pytest.mark.parametrize("first", ["zero", "sample"])
@pytest.mark.parametrize("keep", [0.0, 0.3])
@pytest.mark.parametrize("listening", ONE_BY_ONE)
def test_algorithm_3_for_all_clients_is_the_loop(listening, keep, first):
    A, b = quadratics()
    W = weights()
    exchange = dict(pairs=Collaborators.of_all(csr_array(W)), metric=Metric.plain(D), batch=0, **listening)
    method = BiasCorrection(**exchange, alpha=0.7, eta=0.1, beta=0.3, keep=keep, first=first)
    state = last(method, InProcess(Quadratic(A, b)), 17)
    x, c = literal(A, b, W, 0.7, 0.1, 17, 0.3, keep, first)
    np.testing.assert_allclose(state["x"], x, rtol=1e-12)
    np.testing.assert_allclose(state["c"], c, rtol=1e-11)


def test_another_metric_is_the_same_run_in_other_parameters():
    A, b = quadratics()
    metric = Metric(np.array([1.0, -2.0, 0.5]), np.random.default_rng(3).normal(size=(D, D)) + 2.0 * np.eye(D))
    W, R = weights(), metric.R
    exchange = {"pairs": Collaborators.of_all(W), "metric": metric, "batch": 0}
    method = BiasCorrection(**exchange, alpha=0.4, eta=0.02, beta=0.3)
    state = last(method, InProcess(Quadratic(A, b)), 9)
    inside = np.einsum("ji,mjk,kl->mil", R, A, R), (b - np.einsum("mij,j->mi", A, metric.at)) @ R
    np.testing.assert_allclose(state["x"], literal(*inside, W, 0.4, 0.02, 9, 0.3, first="sample")[0], rtol=1e-9)


def test_rows_are_drawn_with_replacement_and_the_mean_loss_is_descended():
    rng = np.random.default_rng(0)
    n = 4000
    X, y, w = rng.normal(size=(n, 2)), rng.normal(size=n), rng.uniform(0.5, 2.0, n)
    half = np.array([0, n // 2]), np.array([n // 2, n])
    fed = InProcess(GLM(X, y, np.zeros(n), w, *half))
    who = Collaborators.of_one(0, 2)
    whole = WeightedAveraging(pairs=who, metric=Metric.plain(2), batch=0, alpha=0.5, eta=1.0)
    drawn = WeightedAveraging(pairs=who, metric=Metric.plain(2), batch=200_000, alpha=0.5, eta=1.0)
    gradient = [-(w[a:b] * y[a:b]) @ X[a:b] / w[a:b].sum() for a, b in zip(*half, strict=True)]
    np.testing.assert_allclose(-last(whole, fed, 1)["x"][0], np.mean(gradient, axis=0), rtol=1e-10)
    error = last(drawn, fed, 1)["x"] - last(whole, fed, 1)["x"]
    assert 0.0 < np.abs(error).max() < 5.0 * 2.0 / np.sqrt(400_000) * 2.0


@pytest.mark.soak
def test_bias_correction_ends_where_each_client_would_alone_and_keeping_some_bias_where_averaging_with_less_would():
    A, b = quadratics()
    fed, who, metric = InProcess(Quadratic(A, b)), Collaborators.of_all(weights()), Metric.plain(D)
    exchange = {"pairs": who, "metric": metric, "batch": 0}
    alone = np.linalg.solve(A, b[:, :, None])[:, :, 0]
    for options in ({}, {"optimiser": Momentum()}):
        state = last(BiasCorrection(**exchange, alpha=0.8, eta=0.05, beta=0.2, **options), fed, 2000)
        np.testing.assert_allclose(state["x"], alone, atol=1e-10)
    state = last(BiasCorrection(**exchange, alpha=0.8, eta=0.05, beta=0.2, keep=0.25), fed, 2000)
    np.testing.assert_allclose(state["x"], optimum(fed, who, np.full(M, 0.2), metric).theta, atol=1e-6)


def test_local_steps_keep_the_correction():
    A, b = quadratics()
    fed, who = InProcess(Quadratic(A, b)), Collaborators.of_all(weights())
    exchange = {"pairs": who, "metric": Metric.plain(D), "batch": 0, "local": 4}
    state = last(BiasCorrection(**exchange, alpha=0.8, eta=0.02, beta=0.3), fed, 1500)
    np.testing.assert_allclose(state["x"], np.linalg.solve(A, b[:, :, None])[:, :, 0], atol=1e-10)


def test_local_steps_of_one_client_are_its_gradient_steps():
    A, b = quadratics()
    fed, who = InProcess(Quadratic(A, b)), Collaborators.of_one(0, M)
    four = WeightedAveraging(pairs=who, metric=Metric.plain(D), batch=0, local=4, alpha=0.0, eta=0.1)
    one = WeightedAveraging(pairs=who, metric=Metric.plain(D), batch=0, alpha=0.0, eta=0.1)
    np.testing.assert_allclose(last(four, fed, 3)["x"], last(one, fed, 12)["x"], rtol=1e-12)


def test_an_oracle_takes_the_place_of_past_biases():
    A, b = quadratics()
    W = weights()

    def oracle(t, x):
        g = np.einsum("kij,mj->mki", A, x) - b
        return np.einsum("mk,mki->mi", W, g) - g[np.arange(M), np.arange(M)]

    exchange = {"pairs": Collaborators.of_all(W), "metric": Metric.plain(D), "batch": 0}
    fed = InProcess(Quadratic(A, b))
    state = last(BiasCorrection(**exchange, alpha=0.9, eta=0.1, oracle=oracle), fed, 30)
    alone = last(WeightedAveraging(**exchange, alpha=0.0, eta=0.1), fed, 30)
    np.testing.assert_allclose(state["x"], alone["x"], rtol=1e-10)


def test_a_batch_for_the_first_bias_is_a_mean_of_samples_that_no_step_draws():
    A, b = quadratics()
    fed = InProcess(NoisyQuadratic(A, b, 1.0), seed=3)
    exchange = {"pairs": Collaborators.of_one(0, M), "metric": Metric.plain(D)}
    truth = b[0] - b[1:].mean(axis=0)  # at x = 0
    off = {S: BiasCorrection(**exchange, alpha=0.5, eta=0.1, first=S).init(fed)["c"][0] - truth for S in (1, 10**4)}
    assert 0.3 < np.linalg.norm(off[1]) < 5.0
    assert np.linalg.norm(off[10**4]) < 5.0 * np.sqrt(3 * 1.25 / 10**4)


def test_alpha_beta_and_eta_may_be_functions_of_the_step_and_differ_between_main_clients():
    A, b = quadratics()
    fed, W = InProcess(Quadratic(A, b)), weights()
    exchange = {"pairs": Collaborators.of_all(W), "metric": Metric.plain(D), "batch": 0}
    shares = np.linspace(0.0, 1.0, M)
    state = last(WeightedAveraging(**exchange, alpha=shares, eta=lambda t: 0.1 / (1 + t)), fed, 2)
    for i, share in enumerate(shares):
        V = share * W[i] + (1.0 - share) * np.eye(M)[i]
        x = 0.1 * V @ b
        x = x - 0.05 * (np.einsum("k,kij->ij", V, A) @ x - V @ b)
        np.testing.assert_allclose(state["x"][i], x, rtol=1e-12)


def test_adam_is_kingma_and_ba():
    A, b = quadratics()
    exchange = {"pairs": Collaborators.of_one(0, M), "metric": Metric.plain(D), "batch": 0}
    state = last(WeightedAveraging(**exchange, alpha=0.0, eta=0.1, optimiser=Adam()), InProcess(Quadratic(A, b)), 7)
    x, m, v = np.zeros(D), np.zeros(D), np.zeros(D)
    for t in range(1, 8):
        g = A[0] @ x - b[0]
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        x = x - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    np.testing.assert_allclose(state["x"][0], x, rtol=1e-12)


class Sender(Quadratic):
    """Quadratics, of which one client sends something else than its gradient."""

    def __init__(self, A, b, who, what):
        super().__init__(A, b)
        self.who, self.what = who, what

    def take(self, rows):
        view = super().take(rows)
        out = object.__new__(Sender)
        out.__dict__.update(view.__dict__)
        out.who, out.what = self.who, self.what
        return out

    def gradient(self, x):
        g = super().gradient(x)
        here = np.arange(len(self.b))[self._rows]
        if self.what == "another shape" and (here == self.who).any():
            return np.ones((len(g), g.shape[1] + 1))
        g[here == self.who] = {"NaN": np.nan, "infinite": np.inf}.get(self.what, 0.0)
        return g


@pytest.mark.parametrize("listening", ONE_BY_ONE)
@pytest.mark.parametrize("what", ["NaN", "infinite", "another shape"])
@pytest.mark.parametrize("method", [WeightedAveraging, BiasCorrection])
def test_whoever_sends_no_gradient_is_quarantined_and_the_run_goes_on(method, what, listening):
    A, b = quadratics()
    W = weights()
    fed = Loopback(Sender(A, b, 2, what), sites=[[0, 1], [2], [3, 4]])
    exchange = dict(pairs=Collaborators.of_one(0, M, tau=W[0, 1:]), metric=Metric.plain(D), batch=0, **listening)
    options = {"beta": 0.3} if method is BiasCorrection else {}
    state = last(method(**exchange, alpha=0.5, eta=0.1, **options), fed, 20)
    assert state["status"] == "running"
    assert state["t"] == 20
    assert np.flatnonzero(state["quarantined"]).tolist() == [2]
    assert state["quarantined"][2] == 1
    without = W[0, [1, 3, 4]] / W[0, [1, 3, 4]].sum()
    exchange = {"pairs": Collaborators.of_one(0, M, [1, 3, 4], without), "metric": Metric.plain(D), "batch": 0}
    expected = last(method(**exchange, alpha=0.5, eta=0.1, **options), InProcess(Quadratic(A, b)), 20)
    np.testing.assert_allclose(state["x"], expected["x"], rtol=1e-10)


def test_a_main_client_that_sends_garbage_stays_where_it_is_and_is_named():
    A, b = quadratics()
    exchange = {"pairs": Collaborators.of_all(weights()), "metric": Metric.plain(D), "batch": 0}
    state = last(BiasCorrection(**exchange, alpha=0.5, eta=0.1), InProcess(Sender(A, b, 2, "NaN")), 5)
    assert np.flatnonzero(state["quarantined"]).tolist() == [2]
    assert not state["x"][2].any()
    assert np.isfinite(state["x"]).all()
    assert np.all(np.any(state["x"][[0, 1, 3, 4]] != 0.0, axis=1))


def test_an_absent_collaborator_keeps_its_last_place_and_its_age_is_counted():
    A, b = quadratics()
    W = weights()
    exchange = {
        "pairs": Collaborators.of_one(0, M, tau=W[0, 1:]),
        "metric": Metric.plain(D),
        "batch": 0,
        "participation": 0.4,
        "seed": 5,
    }
    method = WeightedAveraging(**exchange, alpha=0.6, eta=0.1)
    fed = InProcess(Quadratic(A, b))
    x, memory, age = np.zeros(D), {}, np.zeros(M - 1)
    oldest = 0
    for state in method.run(fed, range(1, 25)):
        g = np.einsum("kij,j->ki", A, x) - b
        took = state["age"] == 0
        for k in np.flatnonzero(took):
            memory[k] = g[k + 1]
        age = np.where(took, 0, age + 1)
        assert (state["age"] == age).all()
        oldest = max(oldest, int(age.max()))
        share = sum(W[0, k + 1] for k in memory)
        average = sum((W[0, k + 1] * memory[k] for k in memory), np.zeros(D)) / (share or 1.0)
        x = x - 0.1 * ((0.4 * g[0] + 0.6 * average) if memory else g[0])
        np.testing.assert_allclose(state["x"][0], x, rtol=1e-12)
    assert oldest >= 2


def test_a_divergence_is_named_and_leaves_finite_models():
    A, b = quadratics()
    exchange = {"pairs": Collaborators.of_all(weights()), "metric": Metric.plain(D), "batch": 0}
    state = last(WeightedAveraging(**exchange, alpha=0.5, eta=50.0), InProcess(Quadratic(A, b)), 10**4)
    assert state["status"].startswith("diverged by step")
    assert np.isfinite(state["x"]).all()


BAD = [
    (lambda: Collaborators.of_one(0, 1), "There are no collaborators"),
    (lambda: Collaborators.of_one(0, 3, []), "There are no collaborators"),
    (lambda: Collaborators.of_one(0, 3, tau=[0.5, -0.5]), "must be numbers from 0 to 1, and one is -0.5"),
    (lambda: Collaborators.of_one(0, 3, tau=[0.5, np.nan]), "must be numbers from 0 to 1, and one is nan"),
    (lambda: Collaborators.of_one(0, 3, tau=[0.5, 0.6]), "add up to 1.1: ask for them to be normalised"),
    (lambda: Collaborators.of_one(0, 3, tau=[0.5]), "There are 2 collaborators and 1 weights"),
    (lambda: Collaborators.of_one(0, 3, [1, 1], [0.5, 0.5]), "named twice"),
    (lambda: Collaborators.of_one(0, 3, [0, 1], [0.5, 0.5]), "its own collaborator"),
    (lambda: Collaborators.of_one(0, 3, [5]), "numbered from 0 to 2"),
    (lambda: Collaborators.of_all(np.ones((2, 3))), "square matrix"),
    (
        lambda: WeightedAveraging(pairs=None, metric=None, alpha=1.5, eta=0.1),
        names("alpha 0 to 1 1.5"),
    ),
    (lambda: WeightedAveraging(pairs=None, metric=None, alpha=-0.1, eta=0.1), "alpha must be a number from 0 to 1"),
    (lambda: WeightedAveraging(pairs=None, metric=None, alpha=np.nan, eta=0.1), "alpha must be a number from 0 to 1"),
    (lambda: WeightedAveraging(pairs=None, metric=None, alpha=0.5, eta=-0.1), "eta must be a number from 0"),
    (
        lambda: BiasCorrection(pairs=None, metric=None, alpha=0.5, eta=0.1, beta=0.0),
        names("beta number above 0"),
    ),
    (
        lambda: BiasCorrection(pairs=None, metric=None, alpha=0.5, eta=0.1, beta=np.nan),
        names("beta must be a number above 0 not nan"),
    ),
    (
        lambda: WeightedAveraging(pairs=None, metric=None, alpha="x", eta=0.1),
        "alpha must be a number from 0 to 1, one for each main client",
    ),
    (lambda: BiasCorrection(pairs=None, metric=None, alpha=0.5, eta=0.1, keep=2), "keep must be a number from 0 to 1"),
    (
        lambda: BiasCorrection(pairs=None, metric=None, alpha=0.5, eta=0.1, first="one"),
        names("first zero sample"),
    ),
]


@pytest.mark.parametrize(("make", "said"), BAD)
def test_bad_input_is_said_in_one_sentence(make, said):
    with pytest.raises(CoterieError, match=said):
        make()


def test_an_oracle_of_another_shape_is_refused():
    A, b = quadratics()
    exchange = {"pairs": Collaborators.of_all(weights()), "metric": Metric.plain(D), "batch": 0}
    method = BiasCorrection(**exchange, alpha=0.5, eta=0.1, oracle=lambda t, x: x[:, :1])
    with pytest.raises(CoterieError, match=r"biases of shape \(5, 3\), not \(5, 1\)"):
        last(method, InProcess(Quadratic(A, b)), 1)


def test_weights_are_normalised_where_that_is_asked_for():
    np.testing.assert_allclose(Collaborators.of_one(0, 3, tau=[1, 3], normalise=True).tau, [0.25, 0.75])
    W = np.array([[0, 2, 2], [1, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(Collaborators.of_all(W, normalise=True).tau, [0.5, 0.5, 1.0])


def test_beta_of_one_is_allowed():
    A, b = quadratics()
    exchange = {"pairs": Collaborators.of_all(weights()), "metric": Metric.plain(D), "batch": 0}
    state = last(BiasCorrection(**exchange, alpha=0.5, eta=0.05, beta=1.0), InProcess(Quadratic(A, b)), 1500)
    np.testing.assert_allclose(state["x"], np.linalg.solve(A, b[:, :, None])[:, :, 0], atol=1e-10)


def test_a_collaborator_with_other_columns_is_named():
    A, b = quadratics()
    exchange = {"pairs": Collaborators.of_one(0, M), "metric": Metric.plain(D + 1), "batch": 0}
    with pytest.raises(CoterieError, match=names("model 4 parameters clients positions 0 1 2 3")):
        WeightedAveraging(**exchange, alpha=0.5, eta=0.1).init(InProcess(Quadratic(A, b)))
