"""Trees of aggregators: the digits of sites without a tree, whatever is asked, also when replies are lost."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engines import wire
from coterie.engines.aggregator import Aggregator
from coterie.engines.retry_and_quorum import BelowQuorum, Policy
from coterie.engines.secure_sum import Secure
from coterie.engines.site_enrolment import Remote
from coterie.errors import CoterieError
from coterie.federation import Clusters, PerCluster, PerRow, work
from coterie.methods.ditto import Ditto
from tests.contract.cases import quadratic
from tests.engines.sites import Local, nodes

PATIENT = Policy(retries=9)


@work
def moved(site, x):
    """Adds to what a client holds, so that an exchange which happens twice, or is not counted, is seen."""
    site.state["held"] = site.state.get("held", np.zeros(len(site))) + x
    return {"held": site.state["held"], "many": np.ones(len(site), np.int64)}


@work
def of_cluster(site, w):
    return {"w": w[site.clusters] * (1.0 + site.weights[:, None])}


def tree(problem, below, levels=1, fault=None, folder=None):
    """A coordinator over :func:`hubs`."""
    return Remote(hubs(problem, below, levels, fault, folder), policy=PATIENT)


def hubs(problem, below, levels=1, fault=None, folder=None):
    """A transport to aggregators of aggregators of sites; ``below`` are the clients of each site."""
    receivers = {name: node.receive for name, node in nodes(problem, below, folder).items()}
    for level in range(levels):
        names = list(receivers)
        pairs = [names[i : i + 2] for i in range(0, len(names), 2)]
        upper = {}
        for k, pair in enumerate(pairs):
            lower = Local({name: receivers[name] for name in pair}, fault if level == 0 else None)
            own = Aggregator(f"hub {level} {k}", lower, policy=PATIENT, folder=folder and folder / f"hub-{level}-{k}")
            upper[f"hub {level} {k}"] = own.receive
        receivers = upper
    return Local(receivers, fault)


@pytest.fixture
def problem():
    return quadratic()


def places(problem, n=8):
    return list(np.array_split(np.random.default_rng(0).permutation(len(problem.objective)), n))


def flat(problem):
    return Remote(Local({name: node.receive for name, node in nodes(problem, places(problem)).items()}))


def lost(name, call, reply):
    """A third of all replies, on both levels."""
    return None if call % 3 == 0 else reply


QUESTIONS = [
    lambda fed: fed.total(moved, x=1.0),
    lambda fed: fed.ask(moved, x=PerRow(np.arange(23.0))),
    lambda fed: fed.total(moved, to=np.array([3, 20, 11]), by=np.array([1, 0, 1]), groups=3, x=0.5),
    lambda fed: fed.total(moved, by="cluster", x=2.0),
    lambda fed: fed.total(of_cluster, to=Clusters(np.arange(5) % 2 == 0), by="cluster", w=PerCluster(np.eye(5))),
    lambda fed: fed.total(of_cluster, by="cluster", w=PerCluster([np.ones(c + 1) for c in range(5)])),
    lambda fed: fed.ask(moved, to=np.array([22, 0]), x=PerRow(np.array([7.0, 8.0]))),
    lambda fed: fed.total(moved, x=0.25),
]


def answers(fed):
    """What some questions give, one after another, with a mark and a return to it between them."""
    out = []
    for k, question in enumerate(QUESTIONS):
        found = question(fed)
        assert not len(found.missing)
        out += [
            np.concatenate([np.ravel(v) for v in value]) if isinstance(value, list) else value
            for value in found.values()
        ]
        if k == 2:
            fed.mark("here")
        if k == 4:
            fed.restore("here")
    return out


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("fault", [None, lost], ids=["sound", "lossy"])
def test_a_tree_has_the_digits_of_its_sites(problem, levels, fault):
    expected = answers(flat(problem))
    for one, other in zip(answers(tree(problem, places(problem), levels, fault)), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_a_method_with_state_at_its_clients_ends_where_it_ends_without_a_tree(problem):
    def end(fed):
        *_, state = Ditto(eta=0.1, E=2, lam=0.5, C=0.5).run(fed, [6])
        return state["w"], fed.ask(moved, x=0.0)["held"], Ditto(eta=0.1, E=2, lam=0.5, C=0.5).models(fed, state)

    for one, other in zip(end(tree(problem, places(problem), 2, lost)), end(flat(problem)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_an_exchange_that_the_coordinator_did_not_count_did_not_happen_below(problem):
    fed, cut = tree(problem, places(problem)), {"now": False}
    fed.total(moved, x=1.0)
    fed._transport.fault = lambda name, call, reply: None if cut["now"] and name == "hub 0 1" else reply
    fed._retry.policy = Policy(retries=0, min_clients="all")
    cut["now"] = True
    with pytest.raises(BelowQuorum):
        fed.total(moved, x=100.0)
    cut["now"] = False
    assert np.all(fed.ask(moved, x=1.0)["held"] == 2.0)


def test_a_new_process_of_an_aggregator_goes_on(problem, tmp_path):
    """All hubs and sites are made anew from their folders, below a coordinator that stays and opens nothing again."""
    fed = tree(problem, places(problem), 2, folder=tmp_path)

    def again():
        fed._transport = hubs(problem, places(problem), 2, folder=tmp_path)

    again()  # before anything was asked
    for x in (1.0, 2.0):
        fed.ask(moved, to=np.arange(0, 23, 2), x=x)
    again()
    assert fed.ask(moved, x=4.0)["held"].tolist() == [7.0 if i % 2 == 0 else 4.0 for i in range(23)]


def test_a_region_begins_with_all_its_sites_or_not_at_all(problem):
    some = hubs(problem, places(problem), fault=lambda name, call, reply: None if name == "hub 0 1" else reply)
    hub = Aggregator("hub", some, policy=Policy(retries=1, min_clients=1))
    assert "busy" in wire.decode(hub.receive(wire.encode({"kind": "about"})))


def test_a_run_that_no_process_opened_and_a_name_that_is_no_file_are_refused(problem, tmp_path):
    hub = Aggregator("hub", hubs(problem, places(problem)), policy=PATIENT, folder=tmp_path / "hub")
    for run, kind, why in (("run", "last", "does not know the run 'run'"), ("../run", "about", "no name of a run")):
        with pytest.raises(CoterieError, match=why):
            raise CoterieError(wire.decode(hub.receive(wire.encode({"run": run, "kind": kind})))["refused"])
    assert not any(tmp_path.rglob("*"))


def test_sums_cannot_be_masked_within_a_tree(problem):
    fed = tree(problem, places(problem))
    hidden = Remote(fed._transport, secure=Secure(threshold=2))
    with pytest.raises(CoterieError, match="ask for secure sums without a tree"):
        hidden.total(moved, x=1.0)
