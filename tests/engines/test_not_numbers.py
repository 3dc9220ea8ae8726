"""NaN and infinity: from a site where others send numbers they are its fault, and never in a model."""

import numpy as np
import pytest

from coterie.engines import InProcess, Loopback, wire
from coterie.engines.retry_and_quorum import Policy
from coterie.errors import CoterieError
from coterie.families import family_named
from coterie.methods.collaboration import optimum as collaboration
from coterie.methods.collaboration.collaborators import Collaborators
from coterie.methods.collaboration.metric_and_similarity import Metric
from coterie.methods.collaboration.optimum import optimum as gradient_optimum
from coterie.methods.fedavg import FedAvg
from coterie.methods.networks import objective as network_objective
from coterie.methods.networks.objective import Prior
from coterie.methods.networks.optimum import optimum
from coterie.methods.scaffold import Scaffold
from coterie.methods.tree import client_work as tree_work
from coterie.methods.tree.marginal_likelihood import laplace
from coterie.methods.tree.penalised_tree import describe, prepare
from coterie.methods.tree.sweep_up_and_down import zero_deviations
from coterie.objectives.glm import GLM
from coterie.objectives.mean_loss import LIMIT, decode_loss, encode_loss, overflowed
from coterie.relations.clusters import ClusterTree
from coterie.relations.network import Network
from coterie.relations.parameter_layout import Layout
from tests.contract.cases import al2sgd, l2gd, quadratic, with_theta
from tests.contract.registry import CASES

pytestmark = pytest.mark.usefixtures("in_full")

LIAR = 1


class Lying(Loopback):
    """Site 1 answers ``bad`` in place of its floats from the third exchange on."""

    bad, first = np.inf, 3

    def deliver(self, site, data, attempt):
        answer = super().deliver(site, data, attempt)
        reply = wire.decode(answer)
        if site != LIAR or self.number < self.first or "values" not in reply:
            return answer
        spoilt = {n: v * 0.0 + self.bad if v.dtype.kind == "f" else v for n, v in reply["values"].items()}
        return wire.encode(reply | {"values": spoilt})


def lying(problem=None, sites=4, bad=np.inf):
    p = problem or quadratic(k=2)
    given = (p,) if isinstance(p, GLM) else (p.objective, p.clusters, p.weights, p.ids)
    fed = Lying(*given, sites=sites, seed=7, policy=Policy(strict=False))
    fed.bad = bad
    return fed


def finite(state):
    return all(np.isfinite(v).all() for v in state.values() if isinstance(v, np.ndarray) and v.dtype.kind == "f")


TRAINED = [c for c in CASES if c.name in ("fedavg", "scaffold", "async-l2gd", "async-al2sgd", "similarity-network")]


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("case", TRAINED, ids=lambda case: case.name)
def test_a_site_that_sends_no_numbers_is_left_out(case, bad):
    fed = lying(bad=bad)
    assert finite(case.run(fed))
    assert list(fed.quarantined) == ["site 1"] and "NaN or infinite" in fed.quarantined["site 1"]
    assert "other units" in fed.quarantined["site 1"]


@pytest.mark.parametrize("method", [FedAvg(eta=0.1), Scaffold(eta=0.1)], ids=["fedavg", "scaffold"])
@pytest.mark.parametrize("bad", [np.inf, 1.5e308])
def test_where_nobody_knows_whose_fault_it_is_the_model_stays_as_it_was(method, bad):
    """One of two sites; or numbers that are finite, and their sum is not."""
    fed = lying(sites=2, bad=bad)
    *_, state = method.run(fed, range(1, 9))
    assert state["status"].startswith("diverged by step") and finite(state)


@pytest.mark.parametrize("stream", [l2gd, al2sgd])
def test_averages_that_are_not_finite_end_known_clusters_too(stream):
    fed = lying(sites=2)
    fed.first = 6
    *_, state = stream(fed)
    assert state["status"].startswith("diverged")
    assert np.isfinite(with_theta(fed, state)["theta"][fed.sites[0]]).all()


@pytest.mark.parametrize(
    "bad, why",
    [(-1.0, "'xx' is less than 0, and is a sum of squares or a count"), (1e308, "holds NaN or infinite numbers")],
)
def test_sums_that_cannot_be_put_their_site_out_and_the_others_are_fitted(bad, why):
    fed = lying(far_out(), bad=bad)
    fed.first = 1
    assert list(fed.total(describe).missing) == list(fed.sites[LIAR])
    assert list(fed.quarantined) == ["site 1"] and why in fed.quarantined["site 1"]


@pytest.mark.parametrize("strict", [False, True])
def test_curvature_that_bends_down_puts_its_site_out(strict):
    """A site whose quadratics have the wrong sign would have the tree solved for a saddle."""

    class Negating(Loopback):
        def deliver(self, site, data, attempt):
            answer = super().deliver(site, data, attempt)
            reply = wire.decode(answer)
            if site == LIAR and "A" in reply.get("values", {}):
                return wire.encode(reply | {"values": reply["values"] | {"A": -reply["values"]["A"]}})
            return answer

    fed = Negating(far_out(), sites=3, policy=Policy(strict=strict))
    setup = prepare(fed, ClusterTree((np.zeros(1, dtype=np.int64),)), family_named("poisson"), np.arange(2), 0)
    u = zero_deviations(setup.tree, 2)
    with pytest.raises(CoterieError, match="bend down" if strict else "did not answer"):
        laplace(fed, setup, [np.eye(2)[None] * 1e-3] * 2, np.zeros(2), u)
    assert strict or "bend down" in fed.quarantined["site 1"]


# -- honest clients, whose losses overflow at points that are only tried, send numbers all the same


def test_losses_travel_as_numbers():
    loss = np.array([1.0, np.nan, np.inf, 1e120])
    assert np.isfinite(encode_loss(loss)).all() and np.isfinite(encode_loss(loss[:3].astype(np.float32))).all()
    np.testing.assert_array_equal(decode_loss(encode_loss(loss)), [1.0, np.inf, np.inf, np.inf])
    assert decode_loss(np.mean(encode_loss(loss[:3]))) == np.inf
    np.testing.assert_array_equal(overflowed(loss, np.ones((4, 2))), [False, True, True, True])
    np.testing.assert_array_equal(overflowed(np.ones(2), np.array([[1.0, -LIMIT], [0.0, 0.0]])), [True, False])


def far_out(m=6, n=10):
    """Counts of which one client's are a million times the others', and its rows wider: steps overflow there first."""
    rng = np.random.default_rng(0)
    y = rng.poisson(np.repeat(np.where(np.arange(m) == m - 1, 1e6, 2.0), n)).astype(np.float64)
    X, edges = np.column_stack([np.ones(m * n), rng.normal(size=m * n)]), np.arange(0, m * n + 1, n)
    return GLM(X, y, np.zeros(m * n), np.ones(m * n), edges[:-1], edges[1:], "poisson")


@pytest.fixture
def spied(monkeypatch):
    """Losses that overflowed on the way."""
    seen = []
    for module in (tree_work, network_objective, collaboration):
        real = module.overflowed
        monkeypatch.setattr(
            module, "overflowed", lambda *parts, real=real: seen.append(real(*parts).any()) or real(*parts)
        )
    return seen


def on_network(fed):
    network = Network.of(6, np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]), np.ones(5))
    return optimum(
        fed, network, 1e-3, layout=Layout.columns(2, np.arange(2)), prior=Prior.of(network, family_named("poisson"))
    ).theta


def on_a_tree(fed):
    """Twice minus the log-likelihood where a coefficient is far off, which the search goes back from."""
    setup = prepare(fed, ClusterTree((np.zeros(1, dtype=np.int64),)), family_named("poisson"), np.arange(2), 0)
    L = [np.eye(2)[None] * 1e-3] * 2
    far = laplace(fed, setup, L, np.array([0.0, 400.0]), zero_deviations(setup.tree, 2))[0]
    return np.array([far > 1e6, laplace(fed, setup, L, np.zeros(2), zero_deviations(setup.tree, 2))[0]])


def with_collaborators(fed):
    who = Collaborators.of_all((1.0 - np.eye(6)) / 5.0)
    return gradient_optimum(fed, who, np.full(6, 0.1), Metric(np.zeros(2), np.eye(2), 1.0)).theta


@pytest.mark.parametrize("fit", [on_network, on_a_tree, with_collaborators])
def test_a_site_whose_steps_overflow_is_no_broken_one(fit, spied):
    fed = Loopback(far_out(), sites=3, policy=Policy(strict=False))
    found = fit(fed)
    assert any(spied) and not fed.quarantined
    np.testing.assert_allclose(found, fit(InProcess(far_out())), rtol=1e-8)
