"""FedProx, SCAFFOLD, APFL, FedPer, FedRep: against loops written from the papers, known limits, faults, bad input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.engines import InProcess
from coterie.errors import CoterieError
from coterie.federation import work
from coterie.methods.apfl import APFL
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbn import FedBN
from coterie.methods.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from coterie.methods.fedper import FedPer
from coterie.methods.fedprox import FedProx
from coterie.methods.fedrep import FedRep
from coterie.methods.scaffold import Scaffold
from coterie.objectives.quadratic import Quadratic
from coterie.objectives.softmax import Softmax
from tests.engines.faults import Faults, Loopback
from tests.messages import names
from tests.reference import more_baselines_loop as loop
from tests.reference.test_local_training_twin import (
    KINDS,
    M,
    by_rows,
    chosen,
    close,
    epochs,
    gradients,
    objective,
    run,
)

every = pytest.mark.parametrize(("kind", "B", "C"), [*KINDS, ("glm", 20, 0.7)])


def first(o):
    return np.random.default_rng(1).normal(size=o.dim)


def last_is_mine(d):
    return np.arange(d) == d - 1


# -- the papers' loops


@every
def test_fedprox(kind, B, C):
    o = objective(kind)
    state, models = run(FedProx(eta=0.1, B=B, C=C, E=3, mu=0.7, seed=9), o, first(o))
    w = loop.fedprox(gradients(o, B), by_rows(o), first(o), 0.1, epochs(o, 3, B), chosen(C, 9), 0.7)
    np.testing.assert_allclose(state["w"], w, **close)
    np.testing.assert_allclose(models, np.tile(w, (M, 1)), **close)


SERVERS = {
    "avgm": FedAvgM(eta=0.1, beta=0.7, eta_g=0.8),
    "adagrad": FedAdagrad(eta=0.1, beta1=0.7, eta_g=0.2),
    "yogi": FedYogi(eta=0.1, beta1=0.7, beta2=0.8, eta_g=0.2, tau=0.02),
    "adam": FedAdam(eta=0.1, beta1=0.7, beta2=0.8, eta_g=0.2, tau=0.02),
}


@every
@pytest.mark.parametrize("rule", SERVERS)
def test_server_optimisers(kind, B, C, rule):
    o, method = objective(kind), replace(SERVERS[rule], B=B, C=C, E=3, seed=9)
    state, models = run(method, o, first(o))
    how = {"eta_g": method.eta_g, "beta1": 0.7, "beta2": 0.8, "tau": getattr(method, "tau", 1.0)}
    w = loop.fedopt(gradients(o, B), by_rows(o), first(o), 0.1, epochs(o, 3, B), chosen(C, 9), rule, **how)
    np.testing.assert_allclose(state["w"], w, **close)
    np.testing.assert_allclose(models, np.tile(w, (M, 1)), **close)


def test_server_optimisers_without_memory_are_fedavg():
    """Momentum 0 and a step of 1; and steps of eta_g / (2 tau) = 1 where tau is far above all changes."""
    o = quadratic()
    plain = final(FedAvg(eta=0.1), InProcess(o), 5)["w"]
    np.testing.assert_allclose(final(FedAvgM(eta=0.1, beta=0.0), InProcess(o), 5)["w"], plain, rtol=1e-12)
    for server in (FedAdagrad, FedYogi):
        slow = server(eta=0.1, beta1=0.0, tau=1e9, eta_g=2e9)  # sqrt(v_t) stays tau
        np.testing.assert_allclose(final(slow, InProcess(o), 5)["w"], plain, rtol=1e-6)


@every
@pytest.mark.parametrize("option", [1, 2])
def test_scaffold(kind, B, C, option):
    o = objective(kind)
    method = Scaffold(eta=0.1, B=B, C=C, E=3, option=option, eta_g=0.8, seed=9)
    state, models = run(method, o, first(o))
    full = gradients(o, 0) if option == 1 else None
    x, c, _ = loop.scaffold(
        gradients(o, B), by_rows(o), first(o), 0.1, epochs(o, 3, B), chosen(C, 9), eta_g=0.8, full=full
    )
    np.testing.assert_allclose(state["w"], x, **close)
    np.testing.assert_allclose(state["c"], c, **close)
    np.testing.assert_allclose(models, np.tile(x, (M, 1)), **close)


@every
@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl(kind, B, C, adaptive):
    o = objective(kind)
    state, models = run(APFL(eta=0.1, B=B, C=C, E=3, alpha=0.4, adaptive=adaptive, seed=9), o, first(o))
    w, v, a, took_part = loop.apfl(
        gradients(o, B), by_rows(o), first(o), 0.1, epochs(o, 3, B), chosen(C, 9), 0.4, adaptive
    )
    assert (len(set(a)) > 1) == adaptive
    np.testing.assert_allclose(state["w"], w, **close)
    expected = [a[i] * v[i] + (1 - a[i]) * w if i in took_part else w for i in range(M)]
    np.testing.assert_allclose(models, expected, **close)


@every
def test_fedper(kind, B, C):
    o = objective(kind)
    mine = last_is_mine(o.dim)
    method = FedPer(eta=0.1, B=B, C=C, E=2, personal=(str(o.dim - 1),), seed=9)
    state, models = run(method, o, first(o)[~mine])
    start = np.where(mine, 0.0, first(o))
    w, theta = loop.fedper(gradients(o, B), by_rows(o), start, 0.1, epochs(o, 2, B), chosen(C, 9), mine)
    np.testing.assert_allclose(state["w"], w, **close)
    np.testing.assert_allclose(models, theta, **close)


@every
def test_fedrep(kind, B, C):
    o = objective(kind)
    mine = last_is_mine(o.dim)
    method = FedRep(eta=0.1, B=B, C=C, E=2, H=3, personal=(str(o.dim - 1),), seed=9)
    state, models = run(method, o, first(o)[~mine])
    start = np.where(mine, 0.0, first(o))
    w, theta = loop.fedrep(
        gradients(o, B, "head rows"),
        gradients(o, B),
        by_rows(o),
        start,
        0.1,
        epochs(o, 3, B),
        epochs(o, 2, B),
        chosen(C, 9),
        mine,
    )
    np.testing.assert_allclose(state["w"], w, **close)
    np.testing.assert_allclose(models, theta, **close)


def away(exchange, site):
    return site == 0


@work
def kept(site, names):
    return {name: site.state[name] for name in names}


# -- where they end


N = 8


def quadratic(m=N, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(m, 3, 3))
    return Quadratic(root @ root.transpose(0, 2, 1) / 3 + np.eye(3), rng.normal(size=(m, 3)) + 3.0 * rng.normal(size=3))


def rows(counts=(6,) * N, seed=0):
    rng = np.random.default_rng(seed)
    stops = np.cumsum(counts)
    return Softmax.of(rng.normal(size=(stops[-1], 2)), rng.integers(0, 3, stops[-1]), stops - counts, stops, 3)


def final(method, fed, rounds, state=None):
    (state,) = method.run(fed, [rounds], state or method.init(fed))
    assert state["status"] == "running"
    return state


def pooled(o, w):
    return np.linalg.solve(np.einsum("m,mij->ij", w, o.A), w @ o.b)


@pytest.mark.soak("1-0.4", "2-1.0")
@pytest.mark.parametrize("C", [1.0, 0.4])
@pytest.mark.parametrize("option", [1, 2])
def test_scaffold_reaches_the_optimum_with_local_steps_and_fedavg_does_not(C, option):
    o, w = quadratic(), np.arange(1.0, N + 1)
    best, over = pooled(o, w), {"eta": 0.05, "E": 5, "C": C}
    fed = InProcess(o, weights=w)
    np.testing.assert_allclose(final(Scaffold(option=option, **over), fed, 300)["w"], best, rtol=1e-8)
    assert np.abs(final(FedAvg(**over), InProcess(o, weights=w), 300)["w"] - best).max() > 0.02


def test_fedprox_of_exact_steps_ends_at_the_moreau_envelopes():
    o, w, mu = quadratic(), np.arange(1.0, N + 1), 1.5
    H = np.linalg.inv(o.A + mu * np.eye(3))
    best = np.linalg.solve(np.einsum("m,mij->ij", w, np.eye(3) - mu * H), np.einsum("m,mij,mj->i", w, H, o.b))
    state = final(FedProx(eta=0.15, E=100, mu=mu), InProcess(o, weights=w), 60)
    np.testing.assert_allclose(state["w"], best, rtol=1e-9)
    assert np.abs(best - pooled(o, w)).max() > 0.02


def test_fedprox_without_a_term_is_fedavg():
    o = rows()
    one, other = (final(m, InProcess(o), 5) for m in (FedProx(eta=0.2, B=2, E=2, mu=0.0), FedAvg(eta=0.2, B=2, E=2)))
    np.testing.assert_array_equal(one["w"], other["w"])


@pytest.mark.soak("0.4")
@pytest.mark.parametrize("alpha", [0.4, 1.0])
def test_apfl_ends_at_the_local_optimum_whatever_alpha(alpha):
    o = quadratic()
    method, fed = APFL(eta=0.2, alpha=alpha), InProcess(o)
    models = method.models(fed, state := final(method, fed, 1500))
    np.testing.assert_allclose(state["w"], pooled(o, np.ones(N)), rtol=1e-9)
    np.testing.assert_allclose(models, np.linalg.solve(o.A, o.b[..., None])[..., 0], rtol=1e-9)


def test_apfl_keeps_the_start_of_a_client_that_diverges_at_once():
    o = quadratic()
    o.A[1] *= 1e200
    method, fed = APFL(eta=0.2, E=3), InProcess(o)
    with np.errstate(all="ignore"):
        state = method.step(fed, method.init(fed))
    assert np.flatnonzero(state["quarantined"]).tolist() == [1]
    assert np.isfinite(method.models(fed, state)).all()


def test_apfl_with_alpha_zero_is_fedavg_and_adaptive_ones_stay_within_bounds():
    o = quadratic()
    fed = InProcess(o)
    method = APFL(eta=0.2, alpha=0.0, E=3)
    state = final(method, fed, 5)
    np.testing.assert_allclose(state["w"], final(FedAvg(eta=0.2, E=3), InProcess(o), 5)["w"], rtol=1e-13)
    np.testing.assert_allclose(method.models(fed, state), np.tile(state["w"], (N, 1)), rtol=1e-13)
    fed = InProcess(o)
    final(APFL(eta=0.25, alpha=0.9, adaptive=True, E=3), fed, 30)
    alpha = fed.ask(kept, names=["alpha"])["alpha"]
    assert (alpha >= 0.0).all() and (alpha <= 1.0).all() and len(np.unique(alpha)) > 1


@pytest.mark.parametrize("method", [FedPer(eta=0.3, personal=("2",)), FedRep(eta=0.3, H=3, personal=("2",))])
def test_shared_and_own_coordinates_together_are_optimal(method):
    """No gradient is left: neither of the sum in what is shared, nor of any client in what is its own."""
    o, w = quadratic(), np.arange(1.0, N + 1)
    fed = InProcess(o, weights=w)
    theta = method.models(fed, final(method, fed, 150))
    assert len(np.unique(theta[:, :2], axis=0)) == 1 and len(np.unique(theta[:, 2])) == N
    g = o.gradient(theta)
    np.testing.assert_allclose(w @ g[:, :2], 0.0, atol=1e-9)
    np.testing.assert_allclose(g[:, 2], 0.0, atol=1e-9)


def test_fedrep_finds_the_space_of_a_linear_representation():
    """Section 4 of the paper: y = (x' B) h_i; with several heads the body ends in the column space of B."""
    rng = np.random.default_rng(0)
    m, n, d, k = 12, 30, 5, 2
    B, heads = np.linalg.qr(rng.normal(size=(d, k)))[0], rng.normal(size=(m, k))
    X = rng.normal(size=(m, n, d))
    y = np.einsum("mnd,dk,mk->mn", X, B, heads)
    method = FedRep(eta=0.3, E=1, H=20, personal=("head",))
    fed = InProcess(Bilinear(X, y, k))
    start = np.linalg.qr(rng.normal(size=(d, k)))[0]
    state = final(method, fed, 300, method.init(fed, start.ravel()))
    found = np.linalg.qr(state["w"].reshape(d, k))[0]
    assert np.linalg.norm(B - found @ (found.T @ B)) < 1e-6


class Bilinear:
    """Squared errors of ``x' B h``: a body B (d, k) and a head h (k,), as the paper's analysis has it."""

    def __init__(self, X, y, k):
        self.X, self.y, self.k = X, y, k
        self.names = {"body": X.shape[2] * k, "head": k}

    def __len__(self):
        return len(self.X)

    @property
    def dim(self):
        return sum(self.names.values())

    def take(self, some):
        return Bilinear(self.X[some], self.y[some], self.k)

    def gradient(self, theta):
        m, d = len(self), self.X.shape[2]
        B, h = theta[:, : d * self.k].reshape(m, d, self.k), theta[:, d * self.k :]
        features = self.X @ B
        rest = (np.einsum("mnk,mk->mn", features, h) - self.y) / self.X.shape[1]
        g = np.einsum("mn,mnd,mk->mdk", rest, self.X, h)
        return np.concatenate([g.reshape(m, -1), np.einsum("mn,mnk->mk", rest, features)], axis=1)


# -- one client, none, few rows


@pytest.mark.parametrize("method", [FedProx(eta=0.3, B=5, E=2, mu=0.0), Scaffold(eta=0.3, B=5, E=2)])
def test_one_client_is_sgd_at_home(method):
    o = rows((12,))
    expected = final(FedAvg(eta=0.3, B=5, E=2), InProcess(o, seed=4), 6)
    np.testing.assert_allclose(final(method, InProcess(o, seed=4), 6)["w"], expected["w"], rtol=1e-10)


def test_one_client_with_all_layers_its_own_or_none():
    """FedPer of one client is gradient descent on all of its model."""
    o = rows((12,))
    method, fed = FedPer(eta=0.3, B=5, E=2, personal=("0", "3")), InProcess(o, seed=4)
    models = method.models(fed, final(method, fed, 6))
    expected = final(FedAvg(eta=0.3, B=5, E=2), InProcess(o, seed=4), 6)
    np.testing.assert_allclose(models[0], expected["w"], rtol=1e-10)


EVERY = [
    FedProx(eta=0.2, mu=0.5, B=4),
    Scaffold(eta=0.2, B=4),
    APFL(eta=0.2, adaptive=True, B=4),
    FedPer(eta=0.2, personal=("5",), B=4),
    FedRep(eta=0.2, personal=("5",), B=4),
]
on_every = pytest.mark.parametrize("method", EVERY, ids=lambda m: type(m).__name__)


@on_every
def test_clients_without_weight_or_rows_change_nothing_for_others(method):
    """One of weight zero, one whose rows weigh nothing, one without rows, one with a single row, few for a batch."""
    o = rows((5, 6, 3, 1, 2))
    bare = Softmax.of(o.X, o.y, o.starts, o.stops, 3, np.where(np.arange(len(o.X)) < 5, 0.0, 1.0))
    bare.stops[2] = bare.starts[2]
    weights = np.array([1.0, 0.0, 1.0, 1.0, 1.0])
    fed = InProcess(bare, weights=weights)
    state = final(method, fed, 5)
    rest = np.array([3, 4])
    alone = InProcess(o.take(rest), ids=fed.clients.ids[rest], weights=weights[rest])
    expected = final(method, alone, 5)
    np.testing.assert_allclose(state["w"], expected["w"], rtol=1e-12)
    models = method.models(fed, state)
    np.testing.assert_allclose(models[rest], method.models(alone, expected), rtol=1e-12)
    assert np.isfinite(models).all()


@on_every
def test_nobody_weighs(method):
    fed = InProcess(rows((3, 3)), weights=np.zeros(2))
    state = final(method, fed, 3)
    np.testing.assert_array_equal(state["w"], method.init(fed)["w"])
    assert np.isfinite(method.models(fed, state)).all()


@on_every
def test_clients_that_never_took_part_get_the_shared_model(method):
    fed = Loopback(rows(), sites=[[1, 6], [0, 2, 3, 4, 5, 7]], retries=0, faults=Faults(request=away))
    state = final(method, fed, 6)
    models = method.models(fed, state)
    shared = np.full(6, np.nan)
    shared[: len(state["w"])] = state["w"]
    shared[len(state["w"]) :] = 0.0  # own parts start at the objective's first model
    np.testing.assert_array_equal(models[[1, 6]], np.tile(shared, (2, 1)))


def test_gradients_are_counted():
    for method, each in (
        (FedProx(eta=0.1, B=2, E=3, mu=1.0), 9),
        (Scaffold(eta=0.1, B=2, E=3), 9),
        (Scaffold(eta=0.1, B=2, E=3, option=1), 10),
        (APFL(eta=0.1, B=2, E=3), 18),
        (FedRep(eta=0.1, B=2, E=3, H=2, personal=("0",)), 15),
    ):
        fed = InProcess(rows())
        final(method, fed, 4)
        assert fed.ledger.gradient_calls == N * 4 * each


# -- what cannot be


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FedProx(eta=0.1, mu=-1.0), names("mu number 0")),
        (lambda: FedProx(eta=0.1, mu=np.nan), names("mu number 0 nan")),
        (lambda: Scaffold(eta=0.1, option=3), names("option 2 1 3")),
        (lambda: Scaffold(eta=0.1, eta_g=0.0), names("eta_g number above 0")),
        (lambda: APFL(eta=0.1, alpha=1.5), names("alpha number 0 1 1.5")),
        (lambda: APFL(eta=0.1, E=0), names("E whole number 1")),
        (lambda: FedPer(eta=0.1), 'FedPer needs the layers that are personal, such as personal=\\("head'),
        (lambda: FedRep(eta=0.1), "FedRep needs the layers that are personal"),
        (lambda: FedRep(eta=0.1, H=0, personal=("0",)), names("H whole number 1")),
        (lambda: final(FedPer(eta=0.1, personal=("head*",)), InProcess(rows()), 1), "'head\\*' matches no parameter"),
        (lambda: final(FedBN(eta=0.1), InProcess(rows()), 1), names("layer model normalises 0 1 2")),
    ],
)
def test_what_cannot_be_is_named(make, sentence):
    with pytest.raises(CoterieError, match=sentence):
        make()
