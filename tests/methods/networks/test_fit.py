"""What theory says of the similarity network's steps and sums, checked where it is easily lost."""

import numpy as np
import pytest

from coterie.engines.local_engines import InProcess
from coterie.families import family_named
from coterie.methods.networks.fit import step_sizes
from coterie.methods.networks.gradient_exchange import GradientExchange
from coterie.methods.networks.objective import Prior
from coterie.methods.networks.optimum import optimum
from coterie.methods.similarity_network import SimilarityNetwork
from coterie.numerics.network.prox import network_prox
from coterie.objectives.glm import GLM
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout
from tests.engines.faults import Faults, Loopback

COUNTS = np.array([80, 10, 10, 4])
N = len(COUNTS)
STOPS = np.cumsum(COUNTS)
LAYOUT = Layout.of(["a", "b"], shared=["b"])
PATH = Network.of(N, [(0, 1), (1, 2), (2, 3)])


def clients(family: str = "gaussian", small: float = 1.0) -> GLM:
    """Clients of unequal size; the last one's columns may be small."""
    rng = np.random.default_rng(0)
    X = np.c_[np.ones(STOPS[-1]), rng.normal(size=STOPS[-1])]
    X[STOPS[-2] :] *= small
    y = np.repeat([0.0, 2.0, 4.0, 1.0], COUNTS) + X[:, 1] + 0.1 * rng.normal(size=len(X))
    y = y if family == "gaussian" else 1.0 * (y > 1.0)
    return GLM(X, y, np.zeros(len(y)), np.ones(len(y)), STOPS - COUNTS, STOPS, family)


def federation(glm: GLM | None = None) -> InProcess:
    return InProcess(glm or clients(), np.zeros(N, dtype=np.int64), ids=np.arange(N, dtype=np.uint64))


def method(**options) -> SimilarityNetwork:
    return SimilarityNetwork(network=PATH, layout=LAYOUT, lam=0.05, **options)


@pytest.mark.parametrize("participation", [0.3, pytest.param(0.7, marks=pytest.mark.soak)])
def test_gradients_of_those_who_take_part_add_up_to_that_of_all_on_average(participation):
    fed, transport, theta = federation(), GradientExchange(participation=participation), np.zeros((N, 2))
    state = transport.init(fed, 2) | {"t": 0}
    received = [transport.exchange(fed, state | {"t": t}, theta) for t in range(3000)]
    each = np.array([h.share[:, None] * h.g for h in received])
    whole = GradientExchange().exchange(fed, GradientExchange().init(fed, 2) | {"t": 0}, theta)
    off = each.mean(axis=0) - whole.share[:, None] * whole.g
    assert np.all(np.abs(off) < 4.0 * each.std(axis=0) / len(each) ** 0.5)
    assert any(not h.share.any() and not h.unanswered for h in received) or participation > 0.5


@pytest.mark.parametrize("feedback", ["none", "ef21"])
def test_steps_are_stable_however_seldom_clients_take_part(feedback):
    fed = federation()
    size = step_sizes(fed, LAYOUT, np.ones(2), participation=0.05)
    assert size.eta == pytest.approx(0.05 * step_sizes(fed, LAYOUT, np.ones(2)).eta)
    transport = GradientExchange(participation=0.05, feedback=feedback, up="float32")
    run = method(eta=size.eta, own=size.own, transport=transport).run(fed, range(20, 1000, 20))
    assert max(np.abs(state["Z"]).max() for state in run) < 8.0


def test_all_replies_lost_is_no_step():
    lost = Loopback(clients(), np.zeros(N, dtype=np.int64), ids=np.arange(N, dtype=np.uint64), faults=Faults(reply=1.0))
    m = method(eta=0.1)
    state = m.init(federation(), Z=np.arange(N, dtype=np.float64)[:, None])
    after = m.step(lost, state)
    assert after["t"] == 1
    np.testing.assert_array_equal(after["Z"], state["Z"])


def test_steps_know_what_holds_clients_without_neighbours():
    fed = federation(clients("binomial", small=0.01))
    alone = Network.of(N, [(0, 1), (1, 2)])
    held = Prior.of(alone, family_named("binomial")).z
    size = step_sizes(fed, LAYOUT, np.ones(2), held=held)
    m = SimilarityNetwork(network=alone, layout=LAYOUT, lam=0.01, eta=size.eta, own=size.own, held=held / size.weight)
    *_, state = m.run(fed, [300], m.init(fed, Z=np.full((N, 1), 0.5)))
    assert state["status"] == "running" and np.abs(state["Z"][3]) < 0.5


@pytest.mark.parametrize("p", [1, 2, np.inf])
@pytest.mark.parametrize("noise", [0.0, 1e-15, 1e-12])
def test_rows_that_differ_by_rounding_need_no_iterations_to_speak_of(p, noise):
    edges = np.array([(i, j) for i in range(20) for j in range(i + 1, 20)])
    V = np.pi + noise * np.random.default_rng(0).normal(size=(20, 3))
    found = network_prox(V, edges, 1.0, p, 1e-6)
    assert found.iterations < 100
    np.testing.assert_allclose(found.Z, np.tile(V.mean(axis=0), (20, 1)), rtol=1e-12)


@pytest.mark.parametrize("layout", [LAYOUT, Layout.of(["a", "b"]), Layout.of(["a", "b"], both=["a"], zero=["b"])])
def test_steps_of_one_row_each_are_shorter_and_stable(layout):
    fed = federation()
    whole, one = step_sizes(fed, layout, np.ones(2)), step_sizes(fed, layout, np.ones(2), batch=1)
    assert np.all(one.own < whole.own) and (one.eta < whole.eta or not layout.d1)
    m = SimilarityNetwork(
        network=PATH, layout=layout, lam=0.01, eta=one.eta, own=one.own, transport=GradientExchange(batch=1)
    )
    assert max(np.abs(state["Z"]).max() for state in m.run(fed, range(10, 500, 10))) < 8.0


def test_steps_where_all_is_shared():
    found = step_sizes(federation(), Layout.of(["a", "b"], rest="shared"), np.ones(2), batch=2)
    assert found.eta > 0.0 and np.isfinite(found.own).all()


def test_admm_keeps_its_penalty_where_rounding_ends_progress():
    best = optimum(federation(), PATH, 0.05, layout=LAYOUT, kkt=1e-9)
    found = optimum(federation(), PATH, 0.05, layout=LAYOUT, kkt=1e-13, solver="admm")
    assert np.isfinite(found.kkt) and found.kkt < 1e-6
    assert found.value == pytest.approx(best.value, rel=1e-7)


def test_split_is_exact_where_an_entry_of_x_is_read_alone_and_in_a_sum():
    layout = Layout(np.array([0, 0, 1, -1]), np.array([-1, 0, -1, 1]))
    theta = layout.theta(np.array([1.0, -2.0]), np.arange(6.0).reshape(3, 2))
    np.testing.assert_allclose(layout.theta(*layout.split(theta)), theta, rtol=1e-14)
